"""docs/error-codes.md lists exactly the error codes that Holdfast uses."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "holdfast"
GIVEN = re.compile(
    r'(?:code=|describe\((?:error|signal), |bounded_error\(|Permanent\(\s*|"code": )"([A-Z]+(?:_[A-Z]+)*)"'
)


def test_the_page_lists_every_code_and_no_other() -> None:
    sources = [path for path in SOURCES.rglob("*") if path.suffix in (".py", ".sql") and "demo" not in path.parts]
    given = {code for path in sources for code in GIVEN.findall(path.read_text(encoding="utf-8"))} - {"CODE"}
    page = (ROOT / "docs" / "error-codes.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `([A-Z_]+)` \|", page, re.MULTILINE)) | set(re.findall(r"`([A-Z]+_LOST)`", page))
    assert named == given
