"""Applications show what the public API can do, so they may use nothing else; these tests also define that API."""

import ast
from pathlib import Path
from types import ModuleType

import pytest

import holdfast
from holdfast import backoff, errors, events, logs, schedules, testing, types, webhooks

MODULES = {module.__name__: module for module in (backoff, errors, events, logs, schedules, testing, types, webhooks)}
APPS = Path(__file__).parents[2] / "apps"


def exported(module: ModuleType) -> list[str]:
    names: list[str] = vars(module)["__all__"]
    return names


def names_of_holdfast(path: Path) -> set[tuple[str, str]]:
    """Each holdfast module that a file imports from, with the imported name."""
    found: set[tuple[str, str]] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names if alias.name.split(".")[0] == "holdfast"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "holdfast":
            found |= {(node.module or "", alias.name) for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted(APPS.rglob("*.py")), ids=lambda path: str(path.relative_to(APPS)))
def test_an_application_imports_only_what_holdfast_exports(path: Path) -> None:
    public = {(name, each) for name, module in MODULES.items() for each in exported(module)}
    assert names_of_holdfast(path) <= public | {("holdfast", each) for each in ("", *exported(holdfast))}


def test_a_type_checker_sees_the_same_names_as_the_interpreter() -> None:
    (block,) = (
        node
        for node in ast.parse(Path(str(holdfast.__file__)).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If)
    )
    seen = {
        (alias.asname, alias.name, node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == {(name, name, home) for name, home in vars(holdfast)["_HOME"].items()}
    assert exported(holdfast) == sorted(vars(holdfast)["_HOME"])
    for name in exported(holdfast):
        assert getattr(holdfast, name).__name__ == name


def test_public_names_are_few_and_none_is_in_two_modules() -> None:
    assert len(exported(holdfast)) <= 27
    elsewhere = [name for module in MODULES.values() if module is not errors for name in exported(module)]
    assert len(elsewhere) == len(set(elsewhere))
    assert not set(elsewhere) & set(exported(holdfast))
