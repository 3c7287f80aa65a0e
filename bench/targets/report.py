"""`python -m bench.targets.report FILE…`: writes figures from --json into docs/benchmarks.md, between its marks.

Several files form one report. If a line was measured more than once, the last file wins.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.targets.table import table
from holdfast.domain.errors import HoldfastError

PAGE = Path(__file__).parents[2] / "docs" / "benchmarks.md"
BEGIN, END = "<!-- targets -->", "<!-- /targets -->"
HEADING = "## Our own targets"
_VERDICTS = {"met": "met", "missed": "**missed**"}
_ONE_RUN = ("date", "command", "commit")
_NOT_OURS = "not written by python -m bench.targets --json"
_Json = Mapping[str, Any]


class BrokenReport(HoldfastError):
    """The figures or the page do not have the expected form."""


def write(files: Sequence[Path], page: Path = PAGE) -> None:
    """Replace the section, or append it if there is none. The rest of the page stays unchanged."""
    found = [_read(file) for file in files]
    try:
        made = section(found)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise BrokenReport(f"{', '.join(map(str, files))}: {_NOT_OURS}") from error
    try:
        page.write_text(placed(page.read_text(encoding="utf-8"), made), encoding="utf-8")
    except OSError as error:
        raise BrokenReport(f"{page}: {error.strerror}") from error


def _read(file: Path) -> _Json:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BrokenReport(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise BrokenReport(f"{file}: not JSON ({error})") from error
    if not isinstance(found, dict) or not {"environment", "lines", "broken"} <= found.keys():
        raise BrokenReport(f"{file}: {_NOT_OURS}")
    return found


def placed(page: str, text: str) -> str:
    marked = f"{BEGIN}\n\n{text}\n\n{END}"
    if BEGIN not in page and END not in page:
        return f"{page.rstrip()}\n\n{HEADING}\n\n{marked}\n"
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end or BEGIN in after or END in before + after:
        raise BrokenReport(f"the page must have {BEGIN} and {END} once each, in this order")
    return before + marked + after


def section(files: Sequence[_Json]) -> str:
    lines: dict[str, _Json] = {}
    broken: dict[str, str] = {}
    for file in files:
        for name in (*file["lines"], *file["broken"]):
            lines.pop(name, None)
            broken.pop(name, None)
        lines |= file["lines"]
        broken |= file["broken"]
    judged, beside = [], []
    for name, line in lines.items():
        for figure in line["figures"]:
            if figure["target"] is None:
                beside.append((f"`{name}`", _named(figure), *_spread(figure)))
            else:
                verdict = _VERDICTS[figure["verdict"]]
                judged.append((f"`{name}`", _named(figure), figure["target"], *_spread(figure), verdict))
    parts = [
        *(_origin(file["environment"], file["lines"]) for file in files),
        table(("line", "measure", "target", "median", "spread", ""), judged),
        "\n".join(f"- `{name}` broke: {problem}" for name, problem in broken.items()),
        _folded(table(("line", "other figures", "median", "spread"), beside, left=2)),
    ]
    return "\n\n".join(part for part in parts if part)


def _origin(environment: _Json, lines: _Json) -> str:
    server = ", ".join(f"{name} {value}" for name, value in environment.items() if name not in _ONE_RUN)
    date, command, commit = (environment.get(name) or "unknown" for name in _ONE_RUN)
    measured = ", ".join(f"`{name}`" for name in lines)
    return f"Measured on {date} with `{command}`, Holdfast at `{commit}`: {server}. Lines: {measured}."


def _named(figure: _Json) -> str:
    unit = f", {figure['unit']}" if figure["unit"] not in ("", "ratio") else ""
    note = f" ({figure['note']})" if figure["note"] else ""
    return f"{figure['name']}{unit}{note}".replace("|", "\\|")


def _spread(figure: _Json) -> tuple[str, str]:
    """Return the median, and the range from the least to the most if there are several values."""
    median, least, most = (f"{figure[name]:,.{figure.get('digits', 2)}f}" for name in ("median", "least", "most"))
    return median, f"{least}–{most}" if len(figure["values"]) > 1 else ""


def _folded(text: str) -> str:
    return f"<details>\n<summary>Other figures</summary>\n\n{text}\n\n</details>" if text else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.targets.report", description=__doc__)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="output of python -m bench.targets --json")
    try:
        write(parser.parse_args().files)
    except BrokenReport as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
