"""File storage: a local folder, or a bucket of any S3-compatible storage.

A key is chosen before the content exists, and the first complete content written to it stays. So a worker that was cut
off and writes its file late cannot change what others have recorded and sent.
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
    """The storage failed this time."""


class Files:
    def __init__(self, store: "ObjectStore") -> None:
        self._store = store

    async def write_once(
        self, key: str, content: bytes, content_type: str, is_whole: Callable[[bytes], bool] = bool
    ) -> bytes:
        """Write and return `content`, unless the file already has complete content; then return that."""
        if await self._write(key, content, content_type, mode="create"):
            return content
        try:
            found = await self.read(key)
        except FileNotFoundError as error:
            raise StorageUnavailable(f"{key} was removed while it was written") from error
        if is_whole(found):
            return found
        # A machine that crashed may leave an incomplete file.
        await self._write(key, content, content_type, mode="overwrite")
        return content

    async def _write(self, key: str, content: bytes, content_type: str, mode: Literal["create", "overwrite"]) -> bool:
        """Return False if there already is a file."""
        # A folder cannot store attributes of files.
        attributes = None if isinstance(self._store, LocalStore) else {"Content-Type": content_type}
        try:
            await obstore.put_async(self._store, key, content, attributes=attributes, mode=mode)
        except AlreadyExistsError:
            return False
        except (BaseError, OSError) as error:
            raise StorageUnavailable(f"{key} could not be written: {error}") from error
        return True

    async def read(self, key: str, sha256: str | None = None) -> bytes:
        """Read a file, or raise FileNotFoundError. With `sha256`, refuse content with another digest."""
        try:
            found = await obstore.get_async(self._store, key)
            content = bytes(await found.bytes_async())
        except FileNotFoundError:
            raise
        except (BaseError, OSError) as error:
            raise StorageUnavailable(f"{key} could not be read: {error}") from error
        if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
            raise StorageUnavailable(f"{key} does not contain what was written")
        return content


def open_files(url: str) -> Files:
    """Open `file:folder`, which is created if needed, or s3://bucket/prefix with the usual AWS_… variables."""
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
        raise Misconfigured(f"FILES_URL: cannot make folder {path}: {error.strerror}") from None
