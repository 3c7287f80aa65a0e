"""From an open store and the settings to its waits."""

from uuid import UUID

from holdfast.domain.errors import InvalidInput
from holdfast.settings import Settings
from holdfast.store.opening import OpenStore
from holdfast.store.waiters import Heard, Rings
from holdfast.waits.board import Pacing
from holdfast.waits.waits import Waits
from holdfast.wake.final import FinalListener
from holdfast.wake.postgres import listener_url


def open_waits(opened: OpenStore, settings: Settings, pacing: Pacing | None = None) -> Waits:
    """Nothing is started before the first wait."""
    store = opened.waiters
    if store is None:
        raise InvalidInput("this store cannot tell when a job ends; look at the job itself")

    def make_rings(holder: UUID, heard: Heard) -> Rings | None:
        if (own := store.rings(heard)) is not None:
            return own
        url = listener_url(opened.url, settings.listen_url) if settings.listen else None
        return None if url is None else FinalListener(url, holder, heard)

    return Waits(store, make_rings, pacing, opened.loop)
