"""Where files are: a local folder, or a bucket of any S3-compatible storage.

Keys are decided before the content exists, so writing a file again replaces it and never makes a second one.
"""

from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import obstore
from obstore.exceptions import BaseError
from obstore.store import LocalStore, S3Store

from apps.invoicing.settings import Misconfigured

if TYPE_CHECKING:
    from obstore.store import ObjectStore


class StorageUnavailable(Exception):
    """The storage did not do it this time."""


class Files:
    def __init__(self, store: "ObjectStore") -> None:
        self._store = store

    async def write(self, key: str, content: bytes, content_type: str) -> None:
        """Whole or not at all, whoever else writes the same key at the same time."""
        # A folder keeps no attributes beside its files.
        attributes = None if isinstance(self._store, LocalStore) else {"Content-Type": content_type}
        try:
            await obstore.put_async(self._store, key, content, attributes=attributes)
        except (BaseError, OSError) as error:
            raise StorageUnavailable(f"{key} could not be written: {error}") from error

    async def read(self, key: str) -> bytes:
        """FileNotFoundError if there is none."""
        try:
            found = await obstore.get_async(self._store, key)
            return bytes(await found.bytes_async())
        except FileNotFoundError:
            raise
        except (BaseError, OSError) as error:
            raise StorageUnavailable(f"{key} could not be read: {error}") from error


def open_files(url: str) -> Files:
    """`file:` and a folder, which is made if need be, or s3://bucket/prefix with the usual AWS_… variables."""
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return Files(LocalStore(Path(parts.path).resolve(), mkdir=True))
    if parts.scheme == "s3" and parts.netloc:
        return Files(S3Store(parts.netloc, prefix=parts.path.strip("/") or None))
    raise Misconfigured("FILES_URL: write file:some/folder, file:///some/folder or s3://bucket/prefix")
