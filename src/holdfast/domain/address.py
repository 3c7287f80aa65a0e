"""What an address says: its hosts, and the address as a person may see it."""

import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

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


def each_host(url: str) -> tuple[str, ...]:
    """The address of a PostgreSQL once for each of its hosts; ValueError if it cannot be read.

    Several are written as libpq has them: postgresql://ann@one:5432,two:5432/shop, or ?host=one,two&port=5432,5433.
    """
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if hosts:
        places = hosts.split(",")
        for place in places:
            _check_place(place, is_alone=len(places) == 1)
        return tuple(urlunsplit(parts._replace(netloc=f"{user}{at}{place}")) for place in places)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    names, ports = options.pop("host", "").split(","), options.pop("port", "").split(",")
    if len(ports) not in (1, len(names)) or not all(port.isdecimal() for port in ports if port):
        raise ValueError("give one port, or one for each host")
    if len(names) == 1:
        return (url,)
    ports = ports * len(names) if len(ports) == 1 else ports
    return tuple(
        urlunsplit(parts._replace(query=urlencode(options | {"host": name} | ({"port": port} if port else {}))))
        for name, port in zip(names, ports, strict=True)
    )


def _check_place(place: str, *, is_alone: bool) -> None:
    if urlsplit(f"//{place}").port == 0 or not (place or is_alone):
        raise ValueError("a host is missing, or its port is 0")
