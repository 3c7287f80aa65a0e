"""A Django project with Holdfast in it: its tests, its commands, and what it says of wrong settings."""

import json
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.databases import Servers
from tests.django.projects import Project, project_in

HERE = Path(__file__).parent / "project"


@pytest.fixture
def project(servers: Servers) -> Iterator[Project]:
    with project_in(HERE, servers) as project:
        yield project


def tables(project: Project, schema: str) -> int:
    with psycopg.connect(project.url) as connection:
        found = connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = %s", [schema]).fetchone()
    assert found is not None
    return int(found[0])


@pytest.mark.long
def test_the_tests_of_the_project_pass(project: Project) -> None:
    assert "Ran 47 tests" in project.manage("test", "--noinput")


@pytest.mark.long
@pytest.mark.parametrize("variables", [{"WITH_PSYCOPG2": "1"}, {"WITHOUT_TIME_ZONES": "1"}], ids=str)
def test_they_pass_in_other_projects_too(project: Project, variables: dict[str, str]) -> None:
    assert "Ran 47 tests" in project.having(**variables).manage("test", "--noinput")


@pytest.mark.long
def test_they_pass_side_by_side_on_cloned_databases_that_are_kept(project: Project) -> None:
    # The test runner's workers may have no processes of their own.
    options = ["test", "--noinput", "--parallel", "2", "--keepdb", "--exclude-tag", "processes"]
    try:
        for _ in range(2):
            assert "Ran 45 tests" in project.manage(*options)
    finally:
        name = project.environment["PGDATABASE"]
        with psycopg.connect(project.url, autocommit=True) as connection:
            for suffix in ("", "_1", "_2"):
                connection.execute(f'DROP DATABASE IF EXISTS "test_{name}{suffix}" WITH (FORCE)')


@pytest.mark.long
def test_migrate_installs_the_tables_where_they_belong_and_nowhere_else(project: Project) -> None:
    project.manage("migrate", "--plan")
    assert "run `manage.py holdfast migrate`" in project.manage("holdfast", "doctor", code=1)
    assert "run `manage.py holdfast migrate --schema jobs`\n" in project.manage("holdfast", "jobs", "list", code=2)
    assert "Holdfast" not in project.manage("migrate", "--database", "lite")
    assert tables(project, "jobs") == 0
    assert 'Holdfast: schema "jobs" is now at version' in project.manage("migrate")
    assert tables(project, "jobs") > 0
    assert project.manage("holdfast", "subscriptions", "list").count("fail.dead") > 0
    assert "Holdfast" not in project.manage("migrate")
    assert tables(project, "holdfast") == 0
    assert "up to date" in project.manage("holdfast", "migrate")


@pytest.mark.long
def test_the_commands_are_those_of_holdfast(project: Project) -> None:
    project.manage("migrate", "--run-syncdb", "--verbosity", "0")
    assert "Usage: manage.py holdfast worker" in project.manage("holdfast", "worker", "--help")
    assert "Usage: manage.py holdfast [OPTIONS]" in project.manage("help", "holdfast")
    id = project.manage("holdfast", "--settings=settings", "enqueue", "add", '"a"').split()[0]
    assert "succeed 1" in project.manage("holdfast", "tick", "--pythonpath", ".")
    assert "succeeded" in project.manage("holdfast", "jobs", "show", id)
    assert "no job has the id" in project.manage("holdfast", "jobs", "show", id[:-1] + "f", code=1)
    assert "No such command" in project.manage("holdfast", "wrok", code=2)
    assert "checks" in project.manage("holdfast", "doctor", "--allow-unsafe")
    assert "concurrency" in project.manage("holdfast", "worker", "--concurrency", "0", code=2)


def test_wrong_settings_are_errors_of_the_system_checks_and_no_command_runs_with_them(project: Project) -> None:
    wrong = project.having(
        HOLDFAST_TEST_SETTING='{"CONCURENCY": 1, "lease": "9s", "LEASE": "soon", "DATABASE": "reports", "X": 1}'
    )
    answer = wrong.manage("check", code=1)
    for said in (
        "(holdfast.E001) HOLDFAST has no setting 'CONCURENCY'",
        "Did you mean 'CONCURRENCY'?",
        "Did you mean 'LEASE'?",
        "It knows APP, DATABASE, SCHEMA, CONCURRENCY",
        '(holdfast.E002) HOLDFAST["LEASE"]: ',
        "(holdfast.E003) HOLDFAST[\"DATABASE\"]: DATABASES has no 'reports'",
    ):
        assert said in answer
    assert "Traceback" not in answer
    assert "holdfast.E001" in wrong.manage("holdfast", "tick", code=2)
    schema = project.having(HOLDFAST_TEST_SETTING='{"SCHEMA": "pg_jobs"}')
    assert '(holdfast.E002) HOLDFAST["SCHEMA"]: ' in schema.manage("check", code=1)


def test_a_setting_that_is_not_a_dictionary_is_an_error_of_one_line(project: Project) -> None:
    answer = project.having(HOLDFAST_TEST_SETTING="[]").manage("check", code=1)
    assert "(holdfast.E005) HOLDFAST is a list, not a dictionary." in answer
    assert "Traceback" not in answer


def test_a_wrong_variable_is_an_error_of_django_in_one_line(project: Project) -> None:
    answer = project.having(HOLDFAST_LEASEE="3").manage("check", code=1)
    said = "HOLDFAST_LEASEE is not a setting; did you mean HOLDFAST_LEASE?"
    assert answer.splitlines()[-1] == f"django.core.exceptions.ImproperlyConfigured: {said}"
    assert answer.count("Traceback") == 1


def test_jobs_in_another_database_than_the_models_are_a_warning(project: Project) -> None:
    answer = project.having(HOLDFAST_TEST_SETTING='{"DATABASE": "other"}').manage("check")
    assert "(holdfast.W002) Jobs are in the database 'other', but stock.Item is in 'default'" in answer


@pytest.mark.long
def test_a_database_that_is_not_postgresql_is_a_warning_and_refuses_jobs(project: Project) -> None:
    project = project.having(HOLDFAST_TEST_SETTING='{"DATABASE": "lite"}')
    assert "holdfast.W001" in project.manage("check")
    project.manage("migrate", "--database", "lite")
    assert "'lite' is not a PostgreSQL database" in project.manage("holdfast", "doctor", code=2)


@pytest.mark.long
def test_an_app_of_the_project_is_found_or_missed(project: Project, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text("from holdfast import Holdfast\napp = Holdfast(concurrency=3)\nother = 1\n")
    project = project.having(PYTHONPATH=f"{project.environment['PYTHONPATH']}:{tmp_path}")
    own = project.having(HOLDFAST_TEST_SETTING='{"APP": "own:app"}')
    answer = own.manage("check", code=1)
    assert "(holdfast.E004) Handlers of holdfast.django.app never run, because HOLDFAST[\"APP\"] is 'own:app'" in answer
    assert ": add, add.async, add.finish" in answer
    shown = own.having(WITHOUT_STOCK="1").manage("holdfast", "settings", "--json")
    assert json.loads(shown)["HOLDFAST_CONCURRENCY"]["value"] == 3
    assert project.environment["PGDATABASE"] in shown
    for setting, said in (("own:none", "own"), ("own:other", "is a int, not a Holdfast app")):
        given = f'{{"APP": "{setting}"}}'
        assert said in project.having(HOLDFAST_TEST_SETTING=given).manage("check", code=1)
