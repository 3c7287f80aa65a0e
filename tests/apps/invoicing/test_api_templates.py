"""Which templates a draft may name, and what happens to an invoice whose template is broken."""

import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from apps.invoicing.jobs import RENDER_FAILED, RENDER_PDF
from apps.invoicing.settings import Settings
from holdfast import JobState
from holdfast.store.contract import JobFilter
from tests.apps.invoicing.conftest import Api, running_api
from tests.apps.invoicing.issuing import opened_bench
from tests.apps.invoicing.steps import LINE


@pytest.fixture
def folder(templates: Path) -> Path:
    (templates.parent / "outside.typ").write_text("not for everybody")
    return templates


@pytest.fixture
async def api(settings: Settings, folder: Path) -> AsyncIterator[Api]:
    async with running_api(settings.model_copy(update={"templates_folder": folder})) as api:
        yield api


async def refusal(api: Api, template: str) -> str:
    body = {"customerId": str(uuid4()), "currency": "EUR", "lines": [LINE], "template": template}
    answer = await api.client.post("/invoices", body, status=422)
    assert answer["error"] == "INVALID_REQUEST"
    return str(answer["message"])


async def test_a_draft_with_an_unknown_template_is_refused(api: Api, folder: Path) -> None:
    assert await refusal(api, "fancy") == "template: there is no template 'fancy'; there are invoice"
    (folder / "reminder.typ").write_text("")
    assert await refusal(api, "fancy") == "template: there is no template 'fancy'; there are invoice, reminder"
    shutil.rmtree(folder)
    assert await refusal(api, "invoice") == "template: there is no template 'invoice'; there are none"


@pytest.mark.parametrize("name", ["../outside", "../templates/invoice", "invoice.typ", "", ".", "Invoice", "invoice\0"])
async def test_a_name_can_only_mean_a_template_in_the_folder(api: Api, name: str) -> None:
    assert await refusal(api, name) == f"template: there is no template {name!r}; there are invoice"


async def test_a_new_template_can_be_used_at_once(api: Api, folder: Path) -> None:
    shutil.copy(folder / "invoice.typ", folder / "fancy_2.typ")
    invoice = await api.client.get(f"/invoices/{await api.client.draft(template='fancy_2')}")
    assert invoice["template"] == "fancy_2"


async def test_a_broken_template_is_a_422_for_the_pdf_and_a_dead_letter(api: Api, folder: Path) -> None:
    (folder / "broken.typ").write_text("#no_such_thing()")
    invoice = (await api.client.issued(template="broken"))["id"]
    async with opened_bench(api.service.settings) as bench:
        await bench.work_off()
    answer = await api.client.get(f"/invoices/{invoice}/pdf", status=422)
    assert (answer["error"], answer["status"]) == (RENDER_FAILED, "FAILED")
    assert "no_such_thing" in answer["message"]
    (letter,) = await api.service.app.jobs.list(JobFilter(kind=RENDER_PDF.name), limit=10)
    assert letter.state is JobState.FAILED
    assert letter.last_error is not None
    assert letter.last_error.code == RENDER_FAILED
