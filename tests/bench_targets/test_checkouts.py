"""The sides of a comparison: their sources and interpreters, and what cannot be compared."""

import subprocess
import sys
from pathlib import Path

import pytest

from bench.targets.__main__ import main
from bench.targets.against.checkouts import Interpreter, Unusable, check_out, commit_of, copy_working_tree


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit that can be measured."""
    folder = tmp_path / "repository"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "text").write_text("committed")
    (folder / "requirements.lock").write_text("")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    commit(folder)
    return folder


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", *words], cwd=folder, check=True, capture_output=True)


def commit(folder: Path) -> None:
    git(folder, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "--quiet", "--all", "--message=a")


def test_one_side_is_the_commit_and_the_other_the_working_tree(repository: Path, tmp_path: Path) -> None:
    (repository / "src" / "text").write_text("changed")
    (repository / "src" / "__pycache__").mkdir()
    old = check_out(commit_of("HEAD", repository), tmp_path / "old", repository)
    new = copy_working_tree(tmp_path / "new", repository)
    assert (old / "src" / "text").read_text() == "committed"
    assert (new / "src" / "text").read_text() == "changed"
    assert not (new / "src" / "__pycache__").exists()


def test_a_commit_may_be_named_in_any_way_that_git_accepts(repository: Path) -> None:
    whole = commit_of("HEAD", repository)
    assert commit_of(whole[:7], repository) == whole
    for name in ("nothing", "--all", "HEAD:src"):
        with pytest.raises(Unusable, match="has no such commit"):
            commit_of(name, repository)


def test_a_commit_without_a_lock_file_cannot_be_measured(repository: Path, tmp_path: Path) -> None:
    (repository / "requirements.lock").unlink()
    commit(repository)
    with pytest.raises(Unusable, match=r"cannot be measured: .*requirements\.lock"):
        check_out(commit_of("HEAD", repository), tmp_path / "old", repository)


def test_an_interpreter_has_to_run(tmp_path: Path) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    broken.chmod(0o755)
    assert Interpreter.at(sys.executable).version == sys.version_info[:2]
    with pytest.raises(Unusable, match="python: broken"):
        Interpreter.at(str(broken))
    with pytest.raises(Unusable, match="No such file"):
        Interpreter.at(str(tmp_path / "nothing"))
    broken.write_text("#!/bin/sh\necho 3.10.13\n")
    with pytest.raises(Unusable, match=r"3\.11 or later"):
        Interpreter.at(str(broken))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--against", "no-such-commit"], "error: --against no-such-commit: this repository has no such commit"),
        (["--against", "HEAD", "--python", "/nothing/python"], "error: --python /nothing/python: No such file"),
    ],
)
def test_an_impossible_comparison_is_a_one_line_error(
    words: list[str], error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["bench.targets", *words])
    assert main() == 1
    told = capsys.readouterr().err
    assert told.startswith(error)
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    "words",
    [["--measures", "drain"], ["--python", "python"], ["--against", "HEAD", "--only", "bulk"]],
)
def test_contradictory_options_are_refused(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["bench.targets", *words])
    with pytest.raises(SystemExit, match="2"):
        main()
