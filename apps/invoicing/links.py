"""Signed links to files: who has one may read that file until it expires, and nothing else."""

import base64
import hashlib
import hmac
import re
from uuid import UUID

_WHOLE_SECONDS = re.compile(r"[0-9]{1,12}")


class BadLink(Exception):
    """Not a link of ours, or one of another file."""


class ExpiredLink(Exception):
    """It was good once."""


class Links:
    def __init__(self, secret: str) -> None:
        self._secret = secret.encode()

    def query(self, file_id: UUID, expires: int) -> str:
        """What follows the `?` of a link that is good before `expires`, in seconds since 1970."""
        return f"expires={expires}&signature={self._signature(file_id, str(expires))}"

    def check(self, file_id: UUID, expires: str, signature: str, now: float) -> None:
        """Raises BadLink or ExpiredLink. Nobody learns that a link has expired who does not have a good signature."""
        wanted = self._signature(file_id, expires)
        # Bytes, because compare_digest takes no text beyond ASCII.
        if not hmac.compare_digest(wanted.encode(), signature.encode("utf-8", "replace")):
            raise BadLink
        if not _WHOLE_SECONDS.fullmatch(expires):
            raise BadLink
        if now >= int(expires):
            raise ExpiredLink

    def _signature(self, file_id: UUID, expires: str) -> str:
        # The first word keeps signatures apart from whatever else may be signed with this secret one day.
        text = f"file {file_id} {expires}"
        digest = hmac.new(self._secret, text.encode("utf-8", "replace"), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
