"""Every layout is a change to what ships: when that text moves on, its variants must follow."""

from typing import Any, cast

import pytest

from bench.layout.again.layouts import LAYOUTS, VERBS, H, Layout
from holdfast.store.postgres.sql_files import statement


class Written:
    """Stands for a connection, and notes what it is told to execute."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def execute(self, text: str) -> None:
        self.texts.append(text)


async def text_of(layout: Layout) -> str:
    written = Written()
    await layout.install(cast(Any, written))
    return "\n".join([*written.texts, *(layout.statement(verb, 0) for verb in VERBS)])


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
async def test_every_change_finds_what_it_changes(layout: Layout) -> None:
    """It raises otherwise, and what was changed is not what ships."""
    assert (await text_of(layout) == await text_of(H)) is (not layout.changes and not layout.files)


def test_a_change_of_text_that_is_gone_is_refused() -> None:
    layout = next(layout for layout in LAYOUTS.values() if layout.changes)
    change = layout.changes[0]
    assert change.old not in statement("claim_usual", "holdfast")
    with pytest.raises(ValueError, match="is not in"):
        layout._changed(change.where, statement("claim_usual", "holdfast"))
