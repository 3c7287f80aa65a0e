"""A record contains only comparable figures, and only a complete record gets onto the page."""

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from bench.peers import plan, publishing, tables
from bench.peers.__main__ import command
from bench.peers.record import Record, RecordError
from bench.peers.settings import Settings

SETTINGS = Settings.load()


def _facts(**changes: Any) -> dict[str, Any]:  # noqa: ANN401
    facts = {
        "date": "2026-01-31",
        "machine": {"cores": 2, "processor": "a processor", "memory_gib": 4.0, "python": "3.11.7"},
        "server": {"which": "a given one", "server_version": "18.4", "fsync": "on"},
        "share": 1.0,
        "holdfast_commit": "1234567",
        "installed": {"graphile": {"node": "22.1.0"}},
        "settings": SETTINGS.stated(),
        "missing": {},
        "commands": ["run --rounds 1 --pairs 1"],
        "rounds": 1,
        "pairs": 1,
    }
    return facts | changes


def _complete(path: Path, **changes: Any) -> Record:  # noqa: ANN401
    record = Record.open(path)
    record.begin(_facts(**changes))
    figures = {"rate": 100.0, "p50": 1.0, "p99": 2.0}
    lines = [line for line, _ in plan.pairs(SETTINGS.pairs, 1, 1.0)]
    lines += [line for line, _ in plan.rounds(SETTINGS.settings, 1, 1.0, plan.MEASURES)]
    for line in lines:
        record.add(line | figures)
    return record


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"holdfast_commit": "7654321"}, "commit of Holdfast"),
        ({"installed": {"graphile": {"node": "22.2.0"}}}, "versions of the peers"),
        ({"settings": {}}, "settings"),
        ({"share": 0.5}, "share of the sizes"),
        ({"server": {"fsync": "off"}}, "server"),
    ],
)
def test_a_run_is_not_continued_under_different_conditions(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    path = tmp_path / "results.jsonl"
    Record.open(path).begin(_facts())
    before = path.read_text()

    with pytest.raises(RecordError, match=f"begun with another {named}:"):
        Record.open(path).begin(_facts(**changes))
    assert path.read_text() == before


def test_a_continued_run_keeps_every_command_and_the_highest_number_of_turns(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    Record.open(path).begin(_facts(pairs=7, rounds=0, commands=["run --pairs-only"]))
    Record.open(path).begin(_facts(pairs=1, rounds=3, commands=["run --pairs 1"]))
    Record.open(path).begin(_facts(pairs=1, rounds=3, commands=["run --pairs 1"]))

    facts = Record.open(path).facts
    assert (facts["pairs"], facts["rounds"]) == (7, 3)
    assert facts["commands"] == ["run --pairs-only", "run --pairs 1"]


@pytest.mark.parametrize("text", ["no results", "3", "{}", '{"facts": {}}', '{"facts": 1}', "\udcff"])
def test_a_file_with_other_content_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(text.encode(errors="surrogateescape"))

    with pytest.raises(RecordError):
        Record.open(path)


def test_the_recorded_command_omits_only_the_address() -> None:
    options = argparse.Namespace(
        rounds=2, pairs=5, pairs_only=True, only="awa", measures="drain", share=0.5, url="postgresql://me:secret@host/x"
    )

    words = "run --rounds 2 --pairs 5 --pairs-only --only awa --measures drain --share 0.5 --url URL"
    assert command(options) == words


def test_a_complete_record_has_no_objections(tmp_path: Path) -> None:
    assert publishing.objections(SETTINGS, _complete(tmp_path / "results.jsonl")) == []


@pytest.mark.parametrize(
    ("changes", "objection"),
    [
        ({"share": 0.5}, "it is a trial with 0.5 of the sizes"),
        ({"settings": {}}, "settings.toml has changed since"),
        ({"pairs": 2}, "no drain of holdfast/default with 1 (pairs)"),
        ({"rounds": 2}, "no bulk of awa (rounds)"),
    ],
)
def test_an_unsuitable_record_gets_an_objection(tmp_path: Path, changes: dict[str, Any], objection: str) -> None:
    assert objection in publishing.objections(SETTINGS, _complete(tmp_path / "results.jsonl", **changes))


def test_a_missing_part_is_an_objection_and_a_failed_one_is_not(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    _complete(path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    gone = next(line for line in lines if line.get("measure") == "pickup")
    failed = next(line for line in lines if line.get("measure") == "single")
    kept = [line for line in lines if line not in (gone, failed)]
    path.write_text("".join(json.dumps(line) + "\n" for line in [*kept, failed | {"error": "no"}]))

    record = Record.open(path)
    assert publishing.objections(SETTINGS, record) == ["no pickup of holdfast/default with 1 (rounds)"]
    assert "does not count: single of holdfast." in tables.section(SETTINGS, record)


def test_a_peer_that_is_not_installed_is_no_objection_and_the_page_says_why(tmp_path: Path) -> None:
    record = Record.open(tmp_path / "results.jsonl")
    record.begin(_facts(missing={peer.slug: "pip failed" for peer in SETTINGS.peers}))

    assert publishing.objections(SETTINGS, record) == []
    assert "PgQueuer was not measured here: `pip failed`" in tables.section(SETTINGS, record)


def test_the_page_mentions_uncommitted_changes(tmp_path: Path) -> None:
    clean = tables.section(SETTINGS, _complete(tmp_path / "clean.jsonl"))
    dirty = tables.section(SETTINGS, _complete(tmp_path / "dirty.jsonl", holdfast_commit="1234567-dirty"))

    words = "with changes that were not committed"
    assert words not in " ".join(clean.split())
    assert f"`1234567` {words}" in " ".join(dirty.split())


def test_the_tables_replace_the_text_between_the_marks() -> None:
    page = f"before\n{tables.BEGIN}\nold\n{tables.END}\nafter\n"

    assert tables.put(page, "new") == f"before\n{tables.BEGIN}\n\nnew\n\n{tables.END}\nafter\n"


@pytest.mark.parametrize("page", ["", f"{tables.BEGIN} and no end", f"{tables.END}{tables.BEGIN}"])
def test_a_page_without_marks_is_refused(page: str) -> None:
    with pytest.raises(RecordError, match="no place for the tables"):
        tables.put(page, "new")
