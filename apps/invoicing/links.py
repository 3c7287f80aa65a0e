"""Signed links to files. A link gives access to one file until it expires, and to nothing else."""

import base64
import hashlib
import hmac
import re
from uuid import UUID

_WHOLE_SECONDS = re.compile(r"[0-9]{1,12}")


class BadLink(Exception):
    """The link was not made by this service, or is for another file."""


class ExpiredLink(Exception):
    """The link was valid, but has expired."""


class Links:
    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def query(self, file_id: UUID, expires: int) -> str:
        """Return the query string of a link that is valid until `expires`, in seconds since 1970."""
        return f"expires={expires}&signature={self._signature(file_id, str(expires))}"

    def check(self, file_id: UUID, expires: str, signature: str, now: float) -> None:
        """Raise BadLink or ExpiredLink if the link is not valid. Only a good signature reveals that it has expired."""
        wanted = self._signature(file_id, expires)
        # Compare bytes, because compare_digest only accepts text in ASCII.
        if not hmac.compare_digest(wanted.encode(), signature.encode("utf-8", "replace")):
            raise BadLink
        if not _WHOLE_SECONDS.fullmatch(expires):
            raise BadLink
        if now >= int(expires):
            raise ExpiredLink

    def _signature(self, file_id: UUID, expires: str) -> str:
        # The first word separates these signatures from anything else that may be signed with this secret later.
        text = f"file {file_id} {expires}"
        digest = hmac.new(self._secret, text.encode("utf-8", "replace"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
