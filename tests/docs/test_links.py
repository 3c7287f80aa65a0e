"""Every link in the pages leads to an existing file and heading."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for page in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *ROOT.glob("apps/*/*.md"), *ROOT.glob("lab/*.md"))
)


def headings(page: Path) -> set[str]:
    """The anchors of the headings, as GitHub generates them."""
    found = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        other = (page.parent / path).resolve() if path else page
        if not other.exists() or (anchor and anchor not in headings(other)):
            broken.append(target)
    assert broken == []
