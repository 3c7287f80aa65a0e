"""The package loads its names lazily, yet tools can still list them."""

import subprocess
import sys


def test_dir_lists_every_public_name_before_its_first_use() -> None:
    program = "import holdfast; assert set(holdfast.__all__) <= set(dir(holdfast)), dir(holdfast)"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_public_name_exists() -> None:
    program = "import holdfast; [getattr(holdfast, name) for name in holdfast.__all__]; help(holdfast)"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert "class Holdfast(" in done.stdout


def test_a_users_database_library_is_not_imported_before_its_first_connection() -> None:
    code = "import sys, holdfast.app; print({'psycopg', 'psycopg2', 'sqlalchemy', 'django'} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout == "set()\n"
