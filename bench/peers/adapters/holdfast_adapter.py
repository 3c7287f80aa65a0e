"""Holdfast itself, from the project's own environment. Its worker is `holdfast worker`."""

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any, cast

from bench.peers.adapters.commands import answer, probe, url
from holdfast import Holdfast, RunningJob
from holdfast.store.opening import migrate

_APP = "bench.peers.adapters.holdfast_adapter:app"
_SCHEMA = "holdfast"
app = Holdfast()


def _handle(started: Callable[[int], None]) -> None:
    @app.handler("bench.nothing")
    async def nothing(job: RunningJob[object]) -> None:
        started(cast("dict[str, int]", job.payload)["number"])


class HoldfastAdapter:
    async def install(self, *, tuned: bool) -> None:
        del tuned  # Holdfast has no such settings
        await migrate(url(), _SCHEMA)

    async def open(self) -> None:
        app.settings = app.settings.model_copy(update={"store": url()})
        _handle(lambda _number: None)
        await app.open()

    async def close(self) -> None:
        await app.close()

    async def enqueue(self, number: int) -> object:
        return await app.enqueue("bench.nothing", {"number": number})

    async def enqueue_many(self, numbers: range) -> object:
        return await app.enqueue_many([app.job("bench.nothing", {"number": number}) for number in numbers])

    def work(self, settings: Mapping[str, Any], started: Callable[[int], None]) -> None:
        del started  # the worker's process has its own
        command = [sys.executable, "-m", "holdfast", "worker", "--app", _APP, "--store", url()]
        os.execve(sys.executable, command, os.environ | dict(settings))  # noqa: S606


if __name__ == "__main__":
    answer(HoldfastAdapter())
elif os.environ.get("BENCH_FOLDER"):
    _handle(probe())
