"""The folder of templates: lists them, and checks at startup that an invoice could be printed."""

import re
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from apps.invoicing.settings import Misconfigured

_TEMPLATE, _COMPANY = "invoice.typ", "company.json"
# No separator and no dot, so a name cannot lead out of the folder.
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Bank:
    name: str
    iban: str
    bic: str


@dataclass(frozen=True, slots=True)
class _Company:
    """What the default template prints about the sender. The file may have more, for custom templates."""

    name: str
    address: list[str]
    contact: list[str]
    register: list[str]
    bank: _Bank


def check_templates(folder: Path) -> None:
    """Raise Misconfigured unless the folder has the default template and a sender for it."""
    try:
        if not folder.is_dir():
            raise Misconfigured(f"TEMPLATES_FOLDER: {folder} is not a folder")
        (folder / _TEMPLATE).read_bytes()
        TypeAdapter(_Company).validate_json((folder / _COMPANY).read_bytes())
    except OSError as error:
        raise Misconfigured(f"TEMPLATES_FOLDER: {error.filename} cannot be read: {error.strerror}") from None
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        said = f"{where}: {problem['msg']}" if where else problem["msg"]
        raise Misconfigured(f"TEMPLATES_FOLDER: {folder / _COMPANY}: {said}") from None


def template_file(folder: Path, name: str) -> Path | None:
    """Return the template's file, or None if there is no template with that name."""
    if not _NAME.fullmatch(name):
        return None
    file = folder / f"{name}.typ"
    return file if file.is_file() else None


def template_names(folder: Path) -> list[str]:
    return sorted(file.stem for file in folder.glob("*.typ") if template_file(folder, file.stem) is not None)
