"""A template folder that could not print any invoice is refused at startup."""

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


def test_a_folder_with_additional_files_is_accepted(folder: Path) -> None:
    company = json.loads((folder / "company.json").read_text())
    (folder / "company.json").write_text(json.dumps({**company, "motto": "Ad astra"}))
    (folder / "other.typ").write_text("Another template")
    check_templates(folder)


def test_a_path_that_is_missing_or_no_folder_is_refused(folder: Path) -> None:
    assert f"{folder}/none is not a folder" in refusal(folder / "none")
    assert "company.json is not a folder" in refusal(folder / "company.json")


@pytest.mark.parametrize("name", ["company.json", "invoice.typ"])
def test_a_folder_without_a_sender_or_the_default_template_is_refused(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert f"{name} cannot be read: No such file" in refusal(folder)
    (folder / name).mkdir()
    assert f"{name} cannot be read: Is a directory" in refusal(folder)


@pytest.mark.parametrize("content", [b"", b"name: Corely", b"\xff\xfe", b"[]", b'"Corely"'])
def test_invalid_json_of_a_sender_is_refused(folder: Path, content: bytes) -> None:
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
def test_a_missing_sender_field_that_the_template_needs_is_named(
    folder: Path, changes: dict[str, Any], named: str
) -> None:
    company = json.loads((folder / "company.json").read_text())
    (folder / "company.json").write_text(json.dumps({**company, **changes}))
    assert f"company.json: {named}: " in refusal(folder)
    for name in changes:
        del company[name]
    (folder / "company.json").write_text(json.dumps(company))
    assert f"company.json: {named.partition('.')[0]}: " in refusal(folder)
