"""An address as a person may see it."""

import re
from urllib.parse import urlsplit

_UNREADABLE = "(an address that cannot be read)"


def without_password(url: str) -> str:
    """For log lines. An address that cannot be read may have its password anywhere, so it is not shown at all."""
    try:
        parts = urlsplit(url)
        password = parts.password
    except ValueError:
        return _UNREADABLE
    if any("@" in part for part in (parts.path, parts.query, parts.fragment)):
        # An unquoted / ? or # ends the address's first part early, in the middle of a password.
        return _UNREADABLE
    shown = url if password is None else url.replace(f":{password}@", ":…@", 1)
    return re.sub(r"([?&](?:password|sslpassword|passfile)=)[^&]*", r"\1…", shown)
