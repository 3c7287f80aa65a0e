"""A mapping is checked when it is created, lists the parts of the contract that it keeps, and prints its migration."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.errors import InvalidInput
from holdfast.store.parts import EVERY_PART, Part
from holdfast.store.rows.mapping import Rows, RowStates
from tests.rows.tables import DISPATCH, OUTBOX, RECEIPTS, WHOLE

_PAGE = (Path(__file__).parents[2] / "docs" / "rows.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"name": ""}, "rows name: is empty"),
        ({"name": "a,b"}, "--runners could not name it"),
        ({"name": "a "}, "--runners could not name it"),
        ({"table": "a.b.c"}, "several dots"),
        ({"table": 7}, "is not a table"),
        ({"key": ""}, "key: '' is not a name"),
        ({"fence": None}, "fence: None is not a name"),
        ({"claim": None}, "claim: None is not a name"),
        ({"locked_by": "x" * 64}, "longer than the 63 bytes"),
        ({"tenant": "a\0b"}, "NUL"),
        ({"order": ("$1",)}, "a $ before a digit"),
        ({"run_at": ()}, "run_at: name the column"),
        ({"due": "id = $1"}, "a parameter such as $1"),
        ({"due": "true; DROP TABLE x"}, "a ; or a comment"),
        ({"payload_query": "SELECT 1 -- one"}, "a ; or a comment"),
        ({"due": "true /* always"}, "a ; or a comment"),
        ({"due": "true) OR (true"}, "a parenthesis or a quote"),
        ({"due": "(true"}, "a parenthesis or a quote"),
        ({"due": "item.name = 'it"}, "a parenthesis or a quote"),
        ({"kind": None}, "kind=… "),
        ({"kind_column": "kind"}, "kind=… "),
        ({"payload": "details"}, "one of payload"),
        ({"attempts": 0}, "attempts: 0"),
        ({"attempts": None}, "say how many there may be"),
        ({"states": None, "completed_at": None}, "completed_at ends a row"),
        ({"states": None, "error_code": None}, "error_code tells a failure"),
        ({"queue": ""}, "queue: is empty"),
        ({"fence": "locked_by"}, "fence: 'locked_by' is locked_by already"),
        ({"run_at": "locked_until"}, "run_at: 'locked_until' is locked_until already"),
        ({"attempt": "status"}, "states: 'status' is attempt already"),
        ({"key": "fence"}, "key: 'fence' is fence already"),
        ({"priority": "attempt_count"}, "priority: 'attempt_count' is attempt already"),
        ({"states": "status"}, "states: 'status' is not RowStates"),
        ({"payload_query": "", "payload_columns": "title"}, "write a single one as ('title',)"),
        ({"order": "created_at"}, "order: 'created_at' is not a tuple of names"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_an_unusable_mapping_is_refused_in_one_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(said.strip())) as refused:
        replace(DISPATCH, **change)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ready": ()}, "at least one value"),
        ({"ready": ("a", "")}, "'' is not a value"),
        ({"ready": None}, "states.ready: None is not a tuple"),
        ({"ready": 5}, "states.ready: 5 is not a tuple"),
        ({"running": "pending"}, "ready and running"),
        ({"running": "busy", "retry": "busy"}, "'busy' is running, so a row that will be retried"),
        ({"retry": "failed"}, "'failed' is final, so a row that will be retried"),
        ({"retry": "invalid"}, "'invalid' is final, so a row that will be retried"),
        ({"succeeded": "retryable", "retry": None}, "is final, so it cannot be ready"),
        ({"codes": {"X": "pending"}}, "is final, so it cannot be ready"),
        ({"column": ""}, "states.column"),
        ({"incomplete": "sent"}, "states.incomplete: 'sent' is not a tuple"),
        ({"incomplete": ("snet",)}, "'snet' is not a final value"),
        ({"codes": "invalid"}, "states.codes: 'invalid' is not a mapping"),
    ],
)
def test_contradictory_states_are_refused(change: dict[str, Any], said: str) -> None:
    assert DISPATCH.states is not None
    with pytest.raises(InvalidInput, match=said):
        replace(DISPATCH.states, **change)


def test_a_retry_and_a_code_may_pass_a_row_to_the_same_mapping() -> None:
    assert RECEIPTS.states is not None
    assert replace(RECEIPTS.states, retry="retryable").retry == "retryable"


def test_a_mapping_keeps_the_parts_that_it_has_columns_for() -> None:
    never = {Part.KEYS, Part.DELETION, Part.QUEUES, Part.ERROR_HISTORY, Part.PROGRESS}
    assert WHOLE.parts == EVERY_PART - never
    assert OUTBOX.parts == WHOLE.parts - {Part.DEAD, Part.CANCELED}
    assert DISPATCH.parts == frozenset()
    assert RECEIPTS.parts == {Part.ENDS}
    assert Part.RUN_ORDER in replace(DISPATCH, order=()).parts


def test_the_documentation_lists_every_part() -> None:
    listed = re.findall(r"^\| ([a-z_ ]+) \|", _PAGE.split("## What is kept")[1].split("\n## ")[0], re.MULTILINE)
    assert sorted(set(listed) - {"part"}) == sorted(Part)


def test_the_migration_adds_only_the_columns_of_holdfast() -> None:
    printed = RECEIPTS.migration_sql()
    assert 'ADD COLUMN IF NOT EXISTS "claim" uuid' in printed
    assert 'ADD COLUMN IF NOT EXISTS "fence" bigint' in printed
    assert 'ADD COLUMN IF NOT EXISTS "locked_until" timestamptz' in printed
    assert "CREATE INDEX CONCURRENTLY IF NOT EXISTS" in printed
    for own in ("status", "installation_id", "created_at", "id"):
        assert f'EXISTS "{own}"' not in printed


def test_each_state_is_read_back_from_its_values() -> None:
    states = RowStates(
        column="s", ready="new", succeeded="done", failed="bad", dead="bad", codes={"A": "done", "B": "odd"}
    )
    assert {state.value: values for state, values in states.meaning()} == {
        "succeeded": ("done",),
        "failed": ("bad", "odd"),
    }


@pytest.mark.parametrize("due", ["item.name <> ';'", "item.\"a--b\" = 'it''s ('", "(item.a = 1) OR (item.b IN (2, 3))"])
def test_quoted_text_in_a_condition_is_left_unchanged(due: str) -> None:
    assert replace(DISPATCH, due=due).due == due


def test_mappings_are_compared_by_value() -> None:
    rows = Rows(name="a", table="t", kind="k", completed_at="c", error_code="e", attempts=1)
    assert rows == replace(rows, table=("t",), run_at=("run_at",))
