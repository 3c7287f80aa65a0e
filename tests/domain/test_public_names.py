"""The names of the package are loaded late, and known to tools all the same."""

import subprocess
import sys


def test_completion_and_help_know_every_public_name_before_it_is_used() -> None:
    program = "import holdfast; assert set(holdfast.__all__) <= set(dir(holdfast)), dir(holdfast)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_public_name_is_there() -> None:
    program = "import holdfast; [getattr(holdfast, name) for name in holdfast.__all__]; help(holdfast)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "class Holdfast(" in done.stdout


def test_no_library_of_a_user_is_loaded_before_one_of_its_connections_comes_along() -> None:
    code = "import sys, holdfast.app; print({'psycopg', 'psycopg2', 'sqlalchemy', 'django'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout == "set()\n"
