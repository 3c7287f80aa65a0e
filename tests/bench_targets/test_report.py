"""bench.targets writes its section of the page and touches nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.targets.figures import Figure, at_least
from bench.targets.report import BEGIN, END, HEADING, BrokenReport, main, write

_PAGE = "# Benchmarks\n\nSomebody else's text.\n"


def measured(*figures: Figure, name: str = "bulk", broken: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "environment": {"date": "2026-11-15", "command": "python -m x", "commit": "abc", "cores": 2, "pairs": 7},
        "lines": {name: {"figures": [figure.as_dict() for figure in figures], "pairs": []}} if figures else {},
        "broken": broken or {},
    }


@pytest.fixture
def page(tmp_path: Path) -> Path:
    page = tmp_path / "page.md"
    page.write_text(_PAGE)
    return page


def written(page: Path, *files: dict[str, Any]) -> str:
    paths = [page.with_name(f"{number}.json") for number in range(len(files))]
    for path, file in zip(paths, files, strict=True):
        path.write_text(json.dumps(file))
    write(paths, page)
    return page.read_text()


def cells(text: str, word: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if word in line and line.startswith("|")]
    return [cell.strip() for cell in line.strip("|").split("|")]


_ODD = '{"environment": {}, "lines": {"bulk": {"figures": [1]}}, "broken": {}}'
_JUDGED = Figure("against COPY", [0.7, 0.9, 0.75], at_least(0.8), "ratio", note="like with like")
_BESIDE = Figure("a rate", [51_000.4], None, "jobs/s", 0)


def test_a_page_without_the_section_gets_it_at_its_end(page: Path) -> None:
    text = written(page, measured(_JUDGED, _BESIDE))
    assert text.startswith(f"{_PAGE}\n{HEADING}\n\n{BEGIN}\n")
    assert text.endswith(f"\n{END}\n")
    assert "Measured on 2026-11-15 with `python -m x`, Holdfast at `abc`: cores 2, pairs 7." in text


def test_targets_are_judged_and_the_rest_is_folded(page: Path) -> None:
    text = written(page, measured(_JUDGED, _BESIDE))
    assert cells(text, "against COPY") == [
        "`bulk`", "against COPY (like with like)", "≥ 0.8", "0.75", "0.70–0.90", "**missed**",
    ]  # fmt: skip
    folded = text.partition("<details>")[2].partition("</details>")[0]
    assert cells(folded, "a rate") == ["`bulk`", "a rate, jobs/s", "51,000", ""]
    assert "against COPY" not in folded


def test_only_the_text_between_the_marks_is_replaced(page: Path) -> None:
    first = written(page, measured(_JUDGED))
    page.write_text(f"{first}\n## Written later\n")
    second = written(page, measured(Figure("another", [1.0], at_least(0.8))))
    assert second.startswith(_PAGE)
    assert second.endswith("\n## Written later\n")
    assert (second.count(BEGIN), second.count(END), second.count(HEADING)) == (1, 1, 1)
    assert "against COPY" not in second
    assert cells(second, "another")[-1] == "met"
    assert written(page, measured(Figure("another", [1.0], at_least(0.8)))) == second


def test_a_later_file_replaces_the_lines_that_were_measured_again(page: Path) -> None:
    again = measured(Figure("against COPY", [0.9], at_least(0.8)))
    broken = measured(broken={"idle": "Stuck: nothing"})
    idle = measured(Figure("queries", [1.0], at_least(1)), name="idle")
    text = written(page, measured(_JUDGED), broken, idle, again)
    assert cells(text, "against COPY")[-1] == "met"
    assert "broke" not in text
    text = written(page, idle, broken)
    assert "- `idle` broke: Stuck: nothing" in text
    assert "queries" not in text


@pytest.mark.parametrize("marks", [BEGIN, END, f"{END} {BEGIN}", f"{BEGIN} {END} {BEGIN}", f"{BEGIN} {END} {END}"])
def test_a_page_with_odd_marks_is_left_alone(page: Path, marks: str) -> None:
    page.write_text(marks)
    with pytest.raises(BrokenReport, match="once each"):
        written(page, measured(_JUDGED))
    assert page.read_text() == marks


@pytest.mark.parametrize("content", [None, "", "[]", '{"lines": {}}', _ODD])
def test_a_file_with_other_content_is_a_one_line_error(
    tmp_path: Path, content: str | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    if content is not None:
        file.write_text(content)
    monkeypatch.setattr("sys.argv", ["report", str(file)])
    assert main() == 1
    error = capsys.readouterr().err
    assert error.startswith(f"error: {file}: ")
    assert error.count("\n") == 1
