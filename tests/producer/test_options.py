"""Every way to enqueue or publish refuses an unknown option and names the caller's function."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, InvalidInput

NOBODY: Any = object()

CALLS: list[Callable[[Holdfast, Any], object]] = [
    lambda app, options: app.job("greet", **options),
    lambda app, options: app.sync.enqueue("greet", conn=NOBODY, **options),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_misspelled_option_of_a_job_is_refused_with_a_suggestion(call: Callable[..., object]) -> None:
    with pytest.raises(InvalidInput, match=r"^a job has no option 'dely'; did you mean delay\?$"):
        call(Holdfast("postgresql://nowhere/none"), {"dely": "5m"})


async def test_an_event_has_fewer_options_than_a_job() -> None:
    async with Holdfast("memory:") as app:
        with pytest.raises(InvalidInput, match=r"^a job has no option 'dely'"):
            await app.enqueue("greet", dely="5m")  # type: ignore[call-overload]
        with pytest.raises(InvalidInput, match=r"^an event has no option 'delay'; there are tenant, key, "):
            await app.publish("invoice.paid", delay="5m")  # type: ignore[call-arg]
