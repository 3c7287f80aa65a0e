"""Turns the Python blocks of a page in docs/ into one module, `shop.py`."""

import re
from collections.abc import Sequence
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

_DOCS = Path(__file__).parents[2] / "docs"


def blocks_of(page: str) -> list[str]:
    text = (_DOCS / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def module_of(page: str, folder: Path, blocks: Sequence[str] | None = None) -> ModuleType:
    """Import the blocks unchanged, from a file, because type annotations are resolved in a module."""
    path = folder / "shop.py"
    path.write_text("\n\n".join(blocks_of(page) if blocks is None else blocks), encoding="utf-8")
    spec = spec_from_file_location("shop", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
