"""A folder from which no invoice could be printed is refused before one is tried."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from apps.invoicing.settings import Misconfigured, Settings
from apps.invoicing.template_folder import check_templates

TEMPLATES = Settings.model_fields["templates_folder"].default


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(TEMPLATES, tmp_path / "templates"))


def refusal(folder: Path) -> str:
    with pytest.raises(Misconfigured, match=r"^TEMPLATES_FOLDER: [^\n]+$") as refused:
        check_templates(folder)
    return str(refused.value)


def test_one_with_more_than_it_needs_is_taken(folder: Path) -> None:
    company = json.loads((folder / "company.json").read_text())
    (folder / "company.json").write_text(json.dumps({**company, "motto": "Ad astra"}))
    (folder / "other.typ").write_text("Another template")
    check_templates(folder)


def test_what_is_not_there_or_no_folder_is_refused(folder: Path) -> None:
    assert f"{folder}/none is no folder" in refusal(folder / "none")
    assert "company.json is no folder" in refusal(folder / "company.json")


@pytest.mark.parametrize("name", ["company.json", "invoice.typ"])
def test_one_without_a_sender_or_the_usual_template_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"{name} cannot be read: No such file" in refusal(folder)
    (folder / name).mkdir()
    assert f"{name} cannot be read: Is a directory" in refusal(folder)


@pytest.mark.parametrize("content", [b"", b"name: Corely", b"\xff\xfe", b"[]", b'"Corely"'])
def test_a_sender_that_is_not_the_json_of_one_is_refused(folder: Path, content: bytes) -> None:
    (folder / "company.json").write_bytes(content)
    assert "company.json: " in refusal(folder)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"name": None}, "name"),
        ({"address": "one line"}, "address"),
        ({"contact": [1]}, "contact.0"),
        ({"register": {}}, "register"),
        ({"bank": {"name": "Bank", "iban": "DE02"}}, "bank.bic"),
    ],
)
def test_what_the_template_needs_of_the_sender_is_named(folder: Path, changes: dict[str, Any], named: str) -> None:
    company = json.loads((folder / "company.json").read_text())
    (folder / "company.json").write_text(json.dumps({**company, **changes}))
    assert f"company.json: {named}: " in refusal(folder)
    for name in changes:
        del company[name]
    (folder / "company.json").write_text(json.dumps(company))
    assert f"company.json: {named.partition('.')[0]}: " in refusal(folder)
