"""Creates the waits of an open store from the settings."""

from uuid import UUID

from holdfast.domain.errors import InvalidInput
from holdfast.settings import Settings
from holdfast.store.opening import OpenStore
from holdfast.store.waiters import Heard, Rings
from holdfast.waits.waits import Waits
from holdfast.waits.watch import Pacing
from holdfast.wake.final import FinalListener
from holdfast.wake.postgres import listener_url


def open_waits(opened: OpenStore, settings: Settings, pacing: Pacing | None = None) -> Waits:
    """Create the waits. Nothing is started before the first wait."""
    store = opened.waiters
    if store is None:
        raise InvalidInput("this store cannot report when a job ends; look up the job instead")

    def make_rings(holder: UUID, heard: Heard) -> Rings | None:
        if (own := store.rings(heard)) is not None:
            return own
        url = listener_url(opened.url, settings.listen_url) if settings.listen else None
        return None if url is None else FinalListener(url, holder, heard)

    return Waits(store, make_rings, pacing, opened.loop)
