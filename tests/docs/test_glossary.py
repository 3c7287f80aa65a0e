"""docs/glossary.md lists its words in alphabetical order, each once."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "glossary.md").read_text(encoding="utf-8")


def words(title: str) -> list[str]:
    section = PAGE.split(f"\n## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| ([a-z_ -]+?) \|", section, re.MULTILINE)[1:]


def test_words_are_in_alphabetical_order() -> None:
    for title in ("Words", "The laboratory"):
        found = words(title)
        assert found == sorted(found, key=lambda word: word.replace("_", " "))


def test_each_word_is_explained_once() -> None:
    found = words("Words") + words("The laboratory")
    assert len(found) > 70
    assert len(set(found)) == len(found)
