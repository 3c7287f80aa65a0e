"""Applications show what the public API can do, so they use nothing else."""

import ast
from pathlib import Path

import pytest

import holdfast

APPS = Path(__file__).parents[2] / "apps"


def names_of_holdfast(path: Path) -> set[str]:
    """What a file imports of it, with the module in front where that is not `holdfast` itself."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "holdfast"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "holdfast":
            inner = (node.module or "").removeprefix("holdfast")
            found |= {f"{inner}.{alias.name}".lstrip(".") for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted(APPS.rglob("*.py")), ids=lambda path: str(path.relative_to(APPS)))
def test_an_application_imports_only_what_holdfast_exports(path: Path) -> None:
    assert names_of_holdfast(path) <= {"holdfast", *holdfast.__all__}
