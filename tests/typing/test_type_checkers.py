"""What users see in their editors: mypy and pyright check the programs in this folder from the command line.

A line with a mistake ends with `# error: …`. basedpyright is pyright in a wheel that includes node.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
PROGRAMS = Path(__file__).parent / "programs"
_MARK = re.compile(r"# error: \w")


def marked() -> set[tuple[str, int]]:
    return {
        (path.name, number)
        for path in PROGRAMS.glob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if _MARK.search(line)
    }


def found_by_mypy(_: Path) -> set[tuple[str, int]]:
    # List every file, because for a folder the settings exclude mistakes.py.
    files = [str(path) for path in sorted(PROGRAMS.glob("*.py"))]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    lines = [re.match(r"(?P<path>\S+\.py):(?P<line>\d+): error: ", line) for line in done.stdout.splitlines()]
    return {(Path(found["path"]).name, int(found["line"])) for found in lines if found}


def found_by_pyright(tmp_path: Path) -> set[tuple[str, int]]:
    settings = tmp_path / "pyrightconfig.json"
    given = {"include": [str(PROGRAMS)], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}
    settings.write_text(json.dumps(given), encoding="utf-8")
    program = str(Path(sys.executable).parent / "basedpyright")
    command = [program, "--project", str(settings), "--pythonpath", sys.executable, "--level", "error", "--outputjson"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)
    assert told["summary"]["filesAnalyzed"] == len(list(PROGRAMS.glob("*.py"))), done.stderr
    return {(Path(each["file"]).name, each["range"]["start"]["line"] + 1) for each in told["generalDiagnostics"]}


@pytest.mark.parametrize("found_by", [found_by_mypy, found_by_pyright])
def test_a_type_checker_finds_every_mistake_and_nothing_else(found_by: object, tmp_path: Path) -> None:
    assert callable(found_by)
    found = found_by(tmp_path)
    assert (sorted(marked() - found), sorted(found - marked())) == ([], [])
    assert len(marked()) > 30
