"""The two commands that need no setup: they start servers and workers themselves, and leave nothing behind."""

import json
import signal
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.worker.harness import eventually


def is_running(pid: int) -> bool:
    """Whether it is still running. A process that has ended but has not been reaped has an empty command line."""
    command = Path(f"/proc/{pid}/cmdline")
    return command.exists() and bool(command.read_bytes())


@pytest.fixture
def scratch(cli: Cli, tmp_path: Path) -> Path:
    """The only folder in which the command can create temporary folders."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    cli.environment["TMPDIR"] = str(folder)
    return folder


def test_the_demonstration_proves_its_claims_and_leaves_nothing_behind(cli: Cli, scratch: Path) -> None:
    done = cli.run_from_nothing("demo")
    assert (done.code, done.err) == (0, "")
    assert "Worker 1 was killed with kill -9" in done.out
    assert "Nothing was lost: 279 enqueued = 279 finished (277 succeeded + 1 failed + 1 dead)." in done.out
    assert "Each of the 60 invoices is in the ledger exactly once" in done.out
    assert "NO  " not in done.out
    assert "\x1b" not in done.out
    assert len(done.out.splitlines()) < 60
    assert list(scratch.iterdir()) == []


def test_a_terminated_demonstration_cleans_up(cli: Cli, scratch: Path) -> None:
    demo = cli.start("demo")
    try:
        eventually(lambda: list(scratch.glob("*/workers.log")), "the first worker starts")
        server = int(next(scratch.glob("*/postgres/postmaster.pid")).read_text().split()[0])
        demo.terminate()
        assert demo.wait(30) == 128 + signal.SIGTERM
    finally:
        demo.kill()
        demo.wait()
    assert list(scratch.iterdir()) == []
    assert not is_running(server)


@pytest.mark.long
def test_bench_reports_the_documented_figures(cli: Cli, scratch: Path) -> None:
    arguments = ("--jobs", "20", "--workers", "1,2", "--rounds", "1", "--store", cli.url, "--json")
    done = cli.run_from_nothing("bench", *arguments)
    assert done.code == 0, done.err
    report = json.loads(done.out)
    figures = {"jobs", "jobs_per_second", "wal_bytes_per_job", "buffers_per_job"}
    rate = figures | {"limit", "of_limit"}
    times = {"jobs", "p50_ms", "p95_ms", "p99_ms"}
    assert set(report) == {
        "holdfast", "python", "postgresql", "cores", "store", "settings", "payload_bytes", "rounds", "enqueue_single",
        "enqueue_bulk", "drain", "one_table_jobs_per_second", "pick_up_latency", "wal_bytes_per_job",
    }  # fmt: skip
    assert set(report["enqueue_single"]) == set(report["enqueue_bulk"]) == rate
    assert [set(drain) for drain in report["drain"]] == [{"workers"} | rate] * 2
    assert [(drain["workers"], drain["jobs"]) for drain in report["drain"]] == [(1, 20), (2, 20)]
    rates = [report["enqueue_single"], report["enqueue_bulk"], *report["drain"]]
    assert all(set(each["limit"]) == figures | {"what"} and each["limit"]["jobs"] == 20 for each in rates)
    assert all(0 < each[name]["lowest"] <= each[name]["median"] <= each[name]["highest"] for each in rates
               for name in ("jobs_per_second", "of_limit"))  # fmt: skip
    assert all(each["wal_bytes_per_job"] > 0 and each["buffers_per_job"] > 0 for each in rates)
    idle, loaded, polled = report["pick_up_latency"]
    assert set(idle) == set(polled) == times | {"how", "limit", "of_limit"}
    assert set(loaded) == set(idle) | {"jobs_per_second"}
    assert all(set(each["limit"]) == times | {"what"} for each in (idle, loaded))
    assert (polled["limit"], polled["of_limit"]) == (None, None)
    assert [each["jobs"] for each in report["pick_up_latency"]] == [20, 20, 2]
    assert all(0 < each["p50_ms"] <= each["p99_ms"] < 30_000 for each in report["pick_up_latency"])
    assert report["wal_bytes_per_job"] > 0
    assert {"batch", "concurrency", "lease", "poll", "fsync", "synchronous_commit"} <= set(report["settings"])
    steps = done.err.splitlines()
    assert steps[0] == f"holdfast: 1 of {len(steps)}: enqueue, one at a time"
    assert steps[-1] == f"holdfast: {len(steps)} of {len(steps)}: pick-up, polling"
    assert cli.rows("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'holdfast_bench%'") == []
    assert cli.states() == {}
    assert list(scratch.iterdir()) == []


@pytest.mark.long
def test_a_terminated_bench_cleans_up(cli: Cli, scratch: Path) -> None:
    bench = cli.start("bench", "--jobs", "2000", "--store", cli.url)
    try:
        eventually(lambda: list(scratch.glob("*/workers.log")), "the first worker starts")
        bench.terminate()
        assert bench.wait(30) == 128 + signal.SIGTERM, cli.log
    finally:
        bench.kill()
        bench.wait()
    assert cli.rows("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'holdfast_bench%'") == []
    eventually(lambda: cli.rows("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()") == [(1,)],
               "nobody is connected any more")  # fmt: skip
    assert list(scratch.iterdir()) == []
