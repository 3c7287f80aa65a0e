"""The API as a process, and failures to start."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from apps.passports.cli import main
from tests.apps.passports.api.test_health import free_port
from tests.apps.passports.patience import PATIENCE, until
from tests.databases import Database

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).parents[4]


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_with_0(database: Database, number: signal.Signals) -> None:
    port = free_port()
    variables = {"BPC_DATABASE_URL": database.url, "BPC_API_PORT": str(port)}
    process = subprocess.Popen(  # noqa: ASYNC220 - starting it takes no time
        [sys.executable, "-m", "apps.passports", "api"], env=os.environ | variables, cwd=ROOT, stderr=subprocess.PIPE
    )
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client:

            async def is_up() -> bool:
                assert process.poll() is None, "it ended at once"
                try:
                    return (await client.get("/v1/health/ready")).is_success
                except httpx.TransportError:
                    return False

            await until(is_up)
            assert "Verify a battery passport" in (await client.get("/verify")).text
        process.send_signal(number)
        _, errors = await asyncio.to_thread(process.communicate, timeout=PATIENCE)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, b"Traceback" in errors) == (0, False)


@pytest.mark.long
@pytest.mark.parametrize("command", ["api", "worker"])
def test_ctrl_c_at_the_very_start_is_no_traceback(command: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-v", "-m", "apps.passports", command], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    with process.stderr as errors:
        for line in errors:
            if line.startswith("import 'asyncpg"):
                process.send_signal(signal.SIGINT)
                break
        rest = errors.read()
    assert process.wait(PATIENCE) in (-signal.SIGINT, 130)
    assert "Traceback" not in rest


def test_a_failed_start_is_one_line(
    database: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.passports.api.serving.setup_logging", lambda **_: None)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for variables, code, message in (
            ({"BPC_API_PORT": str(taken.getsockname()[1])}, 2, "BPC_API_HOST and BPC_API_PORT: cannot listen on"),
            ({"BPC_API_HOST": "192.0.2.1"}, 2, "BPC_API_HOST and BPC_API_PORT: cannot listen on 192.0.2.1"),
            ({"BPC_API_HOST": "no.such.host.invalid"}, 2, "BPC_API_HOST and BPC_API_PORT: cannot listen on"),
            (
                {"BPC_DATABASE_URL": database.url.replace(database.name, "postgres")},
                2,
                "run `HOLDFAST_STORE=$BPC_DATABASE_URL holdfast migrate`",
            ),
            ({"BPC_DATABASE_URL": f"postgresql://postgres@127.0.0.1:{free_port()}/x"}, 1, "is not available"),
        ):
            with monkeypatch.context() as only:
                for name, value in {
                    "BPC_DATABASE_URL": database.url,
                    "BPC_API_PORT": str(free_port()),
                    **variables,
                }.items():
                    only.setenv(name, value)
                assert main(["api"]) == code
            (line,) = capsys.readouterr().err.splitlines()
            assert message in line
            assert (line.startswith("passports: "), "--store" in line) == (True, False)
