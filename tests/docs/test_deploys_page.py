"""docs/deploys.md is true: both releases of its handler, and each order of deploying producers and workers."""

import re
from pathlib import Path
from typing import Any

from holdfast import Holdfast, JobState, RunningJob
from tests.worker.harness import final_job, working

PAGE = (Path(__file__).parents[2] / "docs" / "deploys.md").read_text(encoding="utf-8")


def new_release() -> tuple[Holdfast, type[Any]]:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    module: dict[str, Any] = {"__name__": "docs_deploys"}
    exec(compile(code, "docs/deploys.md", "exec"), module)  # noqa: S102
    app: Holdfast = module["app"]
    app.settings = app.settings.model_copy(update={"store": "memory:"})
    return app, module["Invoice"]


async def test_the_handler_of_the_page_reads_the_payloads_of_both_releases() -> None:
    app, invoice = new_release()
    async with app:
        old = await app.enqueue("invoice.send", {"number": 17, "to": "ann@example.com"}, version=1)
        new = await app.enqueue("invoice.send", invoice(18, ["bob@example.com"]))
        async with working(app):
            for each in (old, new):
                assert (await final_job(app, each.id)).state is JobState.SUCCEEDED


async def test_a_worker_of_the_old_release_leaves_the_new_payload_to_others() -> None:
    newer, invoice = new_release()
    job = newer.job("invoice.send", invoice(18, ["bob@example.com"]))
    assert job.headers == '{"holdfast.version":2}'
    old = Holdfast("memory:")

    @old.handler("invoice.send")
    async def send(running: RunningJob[dict[str, str]]) -> None:
        raise AssertionError("it would not find the recipient")

    async with old:
        await old.enqueue_many([job])
        report = await old.tick(runners=["queue"])
        assert report.runners[0].processed == 1
        found = await old.jobs.get(job.id)
        assert found is not None
        assert (found.state, found.attempt, found.errors) == (JobState.READY, 0, ())
