"""An option that does not exist is refused in the words of the caller, by every way to enqueue and to publish."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, InvalidInput

CALLS: list[Callable[[Holdfast, Any], object]] = [
    lambda app, options: app.job("greet", **options),
    lambda app, options: app.enqueue_in(object(), "greet", **options),
]


@pytest.mark.parametrize("call", CALLS)
def test_a_misspelt_option_of_a_job_is_refused_with_the_one_that_was_meant(call: Callable[..., object]) -> None:
    with pytest.raises(InvalidInput, match=r"^a job has no option 'dely'; did you mean delay\?$"):
        call(Holdfast("postgresql://nowhere/none"), {"dely": "5m"})


async def test_an_event_has_fewer_options_than_a_job() -> None:
    async with Holdfast("memory:") as app:
        with pytest.raises(InvalidInput, match=r"^a job has no option 'dely'"):
            await app.enqueue("greet", dely="5m")  # type: ignore[call-arg]
        with pytest.raises(InvalidInput, match=r"^an event has no option 'delay'; there are tenant, key, "):
            await app.publish("invoice.paid", delay="5m")  # type: ignore[call-arg]
