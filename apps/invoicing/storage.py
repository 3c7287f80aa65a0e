"""Where files are: a local folder, or a bucket of any S3-compatible storage.

Keys are decided before the content exists, and the first whole content that comes to a key stays there. So a worker
that was cut off, and writes its file late, changes nothing of what others have recorded and sent.
"""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import LocalStore, S3Store

from apps.invoicing.settings import Misconfigured

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_NO_ADDRESS = "FILES_URL: write file:some/folder, file:///some/folder or s3://bucket/prefix"


class StorageUnavailable(Exception):
    """The storage did not do it this time."""


class Files:
    def __init__(self, store: "ObjectStore") -> None:
        self._store = store

    async def write_once(
        self, key: str, content: bytes, content_type: str, is_whole: Callable[[bytes], bool] = bool
    ) -> bytes:
        """What the file holds from now on: `content`, or what somebody else wrote before, if that is whole."""
        if await self._write(key, content, content_type, mode="create"):
            return content
        try:
            found = await self.read(key)
        except FileNotFoundError as error:
            raise StorageUnavailable(f"{key} was removed while it was written") from error
        if is_whole(found):
            return found
        # A machine that went down may leave a file with less in it than was written.
        await self._write(key, content, content_type, mode="overwrite")
        return content

    async def _write(self, key: str, content: bytes, content_type: str, mode: Literal["create", "overwrite"]) -> bool:
        """False: there is one already."""
        # A folder keeps no attributes beside its files.
        attributes = None if isinstance(self._store, LocalStore) else {"Content-Type": content_type}
        try:
            await obstore.put_async(self._store, key, content, attributes=attributes, mode=mode)
        except AlreadyExistsError:
            return False
        except (BaseError, OSError) as error:
            raise StorageUnavailable(f"{key} could not be written: {error}") from error
        return True

    async def read(self, key: str, sha256: str | None = None) -> bytes:
        """FileNotFoundError if there is none. `sha256`: of what it is to hold, or it is not given away."""
        try:
            found = await obstore.get_async(self._store, key)
            content = bytes(await found.bytes_async())
        except FileNotFoundError:
            raise
        except (BaseError, OSError) as error:
            raise StorageUnavailable(f"{key} could not be read: {error}") from error
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise StorageUnavailable(f"{key} does not hold what was written")
        return content


def open_files(url: str) -> Files:
    """`file:` and a folder, which is made if need be, or s3://bucket/prefix with the usual AWS_… variables."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Misconfigured(_NO_ADDRESS) from None
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return Files(LocalStore(_folder(Path(parts.path))))
    if parts.scheme == "s3" and parts.netloc and "@" not in parts.netloc:
        try:
            return Files(S3Store(parts.netloc, prefix=parts.path.strip("/") or None))
        except (BaseError, ValueError) as error:
            raise Misconfigured(f"FILES_URL: {str(error).splitlines()[0]}") from None
    raise Misconfigured(_NO_ADDRESS)


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
        return path.resolve(strict=True)
    except OSError as error:
        raise Misconfigured(f"FILES_URL: {path} cannot be made a folder: {error.strerror}") from None
