"""ARCHITECTURE.md: the files on its road and in its directions exist."""

import re
from pathlib import Path

PAGE = Path("ARCHITECTURE.md").read_text(encoding="utf-8")
SOURCE = Path("src/holdfast")


def section(title: str) -> str:
    return PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]


def road() -> list[str]:
    return re.findall(r"^\| \d* ?\| `([^`]+)` \|", section("The road"), re.MULTILINE)


def test_the_road_is_short_and_lists_no_file_twice() -> None:
    files = road()
    assert len(files) - 1 <= 15
    assert len(set(files)) == len(files)
    assert [file for file in files if not (SOURCE / file).is_file()] == []


def test_every_file_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`([a-z_/]+/[a-z_]+\.(?:py|sql))`", PAGE))
    places = (SOURCE, SOURCE / "store/postgres", Path("tests"), Path())
    assert [file for file in sorted(named) if not any((place / file).is_file() for place in places)] == []
