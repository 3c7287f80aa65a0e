"""Which measurements are compared with each other. The measured values themselves depend on the server."""

from pathlib import Path
from unittest.mock import AsyncMock, create_autospec

import pytest

from holdfast_lab.bench import measure
from holdfast_lab.bench.figures import Rate
from holdfast_lab.bench.place import Place
from holdfast_lab.bench.producing import Enqueued

_COPIED = Rate(1_000, 0.01, 0, None)


def rate(jobs_per_second: float) -> Rate:
    return Rate(1_000, 1_000 / jobs_per_second, 0, None)


@pytest.fixture
def bench(tmp_path: Path) -> measure._Bench:
    place = Place("", "holdfast", tmp_path, True, create_autospec(object))
    return measure._Bench(place, measure.Size(1_000, (1,), 2), create_autospec(object))


async def test_the_limit_of_a_drain_is_the_faster_method_in_each_round(
    bench: measure._Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    drains = AsyncMock(side_effect=[rate(70_000), rate(60_000), rate(50_000), rate(65_000)])
    monkeypatch.setattr(bench, "_measured", AsyncMock(return_value=_COPIED))
    monkeypatch.setattr(bench, "_bare_drain", drains)
    await bench._copy_and_drain(1)
    await bench._copy_and_drain(1)
    assert [call.args for call in drains.await_args_list] == [(1, True), (1, False)] * 2
    assert [round(each.per_second) for each in bench._rates["bare drain 1"]] == [70_000, 65_000]
    assert bench._rates["bare copy"] == [_COPIED] * 2


def test_all_rounds_have_the_load_of_the_first(bench: measure._Bench) -> None:
    bench._with_making.append(10_000)
    bench._rates["drain 1"].append(rate(10_000))
    first = bench._batch_at_half_load
    bench._with_making += [90_000, 90_000]
    bench._rates["drain 1"] += [rate(90_000)] * 2
    assert first == bench._batch_at_half_load == 25


def test_the_rate_including_making_jobs_counts_both_times() -> None:
    enqueued = Enqueued(100, 0.5, 1.5)
    assert (enqueued.jobs_per_second, enqueued.with_making_per_second) == (200, 50)
