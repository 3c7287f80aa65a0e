"""The output of `holdfast worker` in a terminal and in a file."""

import contextlib
import json
import os
import re
import select
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Cli
from tests.worker.harness import eventually

SHOP = """
import asyncio
import logging
from pathlib import Path

from holdfast import Holdfast, Permanent

app = Holdfast()


@app.handler("greet")
async def greet(job):
    logging.getLogger("shop").info("greeting")


@app.handler("lasts")
async def lasts(job):
    Path(job.payload["started"]).touch()
    while not Path(job.payload["until"]).exists():
        await asyncio.sleep(0.01)


@app.handler("measure", isolation="process")
def measure(job):
    logging.getLogger("shop").info("measuring")


def connect(card):
    raise ConnectionError(f"no line to {card}")


@app.handler("charge", attempts=1, queue="money")
async def charge(job):
    connect(job.payload["card"])


@app.handler("refuse")
async def refuse(job):
    raise Permanent("NOT_WANTED", f"{job.payload['card']} is blocked")
"""
CANARY = "4111-canary"
TIME = r"\d\d:\d\d:\d\d\.\d\d\d"


class Terminal:
    """`holdfast worker` in a new terminal whose output is read all the time."""

    def __init__(self, cli: Cli, **environment: str) -> None:
        self._ours, theirs = os.openpty()
        # The first terminal that a session leader opens becomes the terminal of the session and delivers its signals.
        place = os.ttyname(theirs)
        self.process = subprocess.Popen(
            ["sh", "-c", f'exec "$0" -m holdfast worker --app shop <{place} >{place} 2>&1', sys.executable],
            cwd=cli.folder,
            env={**cli.environment, "TERM": "xterm", "PYTHONIOENCODING": "utf-8", **environment},
            start_new_session=True,
        )
        self._theirs = theirs
        self._seen = b""
        self._is_open = True
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    @property
    def shown(self) -> str:
        return self._seen.decode(errors="ignore").replace("\r\n", "\n")

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def close(self) -> None:
        """Close the terminal like a person who closes the window: the programs in it get SIGHUP."""
        if self._is_open:
            self._is_open = False
            self._reader.join()
            os.close(self._theirs)
            os.close(self._ours)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.close()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while self._is_open:
                if select.select([self._ours], [], [], 0.05)[0]:
                    self._seen += os.read(self._ours, 65536)


@pytest.fixture
def shop(cli: Cli) -> Cli:
    (cli.folder / "shop.py").write_text(SHOP, encoding="utf-8")
    return cli


@pytest.fixture
def terminal(shop: Cli, request: pytest.FixtureRequest) -> Iterator[Terminal]:
    terminal = Terminal(shop, **getattr(request, "param", {"NO_COLOR": "1"}))
    yield terminal
    terminal.kill()


def test_a_terminal_shows_the_kinds_each_attempt_and_why_one_failed(shop: Cli, terminal: Terminal) -> None:
    charged = shop.enqueue("charge", f'{{"card": "{CANARY}"}}')
    greeted = shop.enqueue("greet")
    measured = shop.enqueue("measure")
    eventually(lambda: terminal.shown.count("succeeded") == 2 and "jobs show" in terminal.shown, "all is shown")
    shown = terminal.shown
    heading, *listed = shown.split("info", 1)[0].splitlines()[:5]
    assert re.fullmatch(rf"{TIME}  serving", heading)
    assert [line.split()[0] for line in listed] == ["store", "schema", "kinds", "queues"]
    assert "charge, greet, lasts, measure, refuse" in listed[2]
    assert listed[3].split() == ["queues", "default,", "money"]
    for id, kind, words in ((greeted, "greet", "greeting"), (measured, "measure", "measuring")):
        assert re.search(rf"{TIME}  info +shop: {words}  \[{kind} {id[-8:]}\]\n", shown)
        assert re.search(rf"{TIME}  succeeded +{kind} {id[-8:]}  attempt 1 of 4  \S+s\n", shown)
    failed = rf"{TIME}  dead +charge {charged[-8:]}  attempt 1 of 1  \S+s  queue money\n((    .*\n)+)"
    found = re.search(failed, shown)
    assert found is not None, shown
    files = re.findall(r'File "([^"]+)", line \d+, in (\w+)', found[1])
    assert files == [(str(shop.folder / "shop.py"), name) for name in ("charge", "connect")]
    assert f"    ConnectionError: no line to {CANARY}\n    holdfast jobs show {charged}\n" in found[1]
    assert "\x1b" not in shown


@pytest.mark.parametrize("terminal", [{}], indirect=True)
def test_a_terminal_shows_words_in_color(shop: Cli, terminal: Terminal) -> None:
    shop.enqueue("greet")
    eventually(lambda: "\x1b[32msucceeded\x1b[0m" in terminal.shown, "the attempt is shown")


def test_ctrl_c_prints_how_long_it_waits_and_what_the_next_one_does(terminal: Terminal) -> None:
    eventually(lambda: "worker started" in terminal.shown, "the worker starts")
    terminal.type("\x03")
    assert terminal.process.wait(30) == 0
    assert "stopping: running handlers have 30s to finish; press Ctrl-C again to interrupt them" in terminal.shown


def test_a_worker_whose_terminal_is_closed_shuts_down_in_order(shop: Cli, terminal: Terminal) -> None:
    id = shop.enqueue("lasts", f'{{"started": "{shop.folder / "started"}", "until": "{shop.folder / "end"}"}}')
    eventually((shop.folder / "started").exists, "the handler starts")
    terminal.close()
    (shop.folder / "end").touch()
    assert terminal.process.wait(30) == 0
    assert shop.states() == {id: "succeeded"}


@pytest.mark.parametrize("isolation", ["greet", "measure"])
def test_a_file_gets_no_line_for_a_success_and_no_data_of_jobs(isolation: str, shop: Cli) -> None:
    worker = shop.start("worker", "--app", "shop", "--poll", "50ms")
    try:
        ids = [shop.enqueue(kind, f'{{"card": "{CANARY}"}}') for kind in ("charge", "refuse", isolation)]
        eventually(lambda: set(shop.states().values()) == {"dead", "failed", "succeeded"}, "all end")
        worker.terminate()
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()
    log = shop.log
    assert re.search(rf'now a dead letter  job_id={ids[0]} .* error=ConnectionError at="shop.py:\d+ in connect"\n', log)
    assert f"job_id={ids[2]} kind={isolation} attempt=1\n" in log
    assert ("attempt succeeded" in log, "Traceback" in log, CANARY in log) == (False, False, False)


def test_a_file_gets_json_with_everything_requested(shop: Cli) -> None:
    asked = {"FORMAT": "json", "ATTEMPTS": "all", "TRACEBACKS": "true", "LEVEL": "warning"}
    shop.environment |= {f"HOLDFAST_LOG_{name}": value for name, value in asked.items()}
    worker = shop.start("worker", "--app", "shop", "--poll", "50ms", "--log-level", "info")
    try:
        ids = [shop.enqueue(kind, f'{{"card": "{CANARY}"}}') for kind in ("charge", "greet")]
        eventually(lambda: set(shop.states().values()) == {"dead", "succeeded"}, "all end")
        worker.terminate()
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()
    lines = [json.loads(line) for line in shop.log.splitlines()]
    attempts = {line["job_id"]: line for line in lines if line["logger"] == "holdfast.attempts"}
    assert [attempts[id]["outcome"] for id in ids] == ["dead", "succeeded"]
    assert attempts[ids[0]]["exception"].endswith(f"ConnectionError: no line to {CANARY}")
    (own,) = [line for line in lines if line["logger"] == "shop"]
    assert (own["message"], own["job_id"], own["kind"], own["attempt"]) == ("greeting", ids[1], "greet", 1)


def test_a_tick_shows_only_failures(shop: Cli) -> None:
    id = shop.enqueue("refuse", f'{{"card": "{CANARY}"}}')
    shop.enqueue("greet")
    done = shop.run("tick", "--app", "shop")
    (line,) = done.err.splitlines()
    assert f"job is now a dead letter  job_id={id}" in line
    assert CANARY not in done.err
