"""Programs that use `app.sync` without an event loop: python -m tests.producer.blocking_program NAME URL."""

import atexit
import os
import sys
import threading
import time
from unittest.mock import patch

from holdfast import Holdfast, HoldfastError, RunningJob, StoreUnavailable


def enqueues(app: Holdfast) -> None:
    app.sync.enqueue("a.kind", {"from": "a script"})


def enqueues_for_a_handler(app: Holdfast) -> None:
    @app.handler("a.kind")
    def handle(job: RunningJob[None]) -> None: ...

    app.sync.enqueue("a.kind")


def ends_as_python_3_12_does(app: Holdfast) -> None:
    enqueues_for_a_handler(app)
    _refuse_threads_at_exit()


def _refuse_threads_at_exit() -> None:
    """From Python 3.12 on, an exiting interpreter starts no threads."""
    refused = RuntimeError("can't create new thread at interpreter shutdown")
    # Registered last, so called first.
    atexit.register(patch.object(threading.Thread, "start", side_effect=refused).start)


def enqueues_in_an_exit_handler(app: Holdfast) -> None:
    atexit.register(_say_how_it_fails, app)
    app.sync.jobs.count()


def starts_in_an_exit_handler_of_python_3_12(app: Holdfast) -> None:
    atexit.register(_say_how_it_fails, app)
    _refuse_threads_at_exit()


def _say_how_it_fails(app: Holdfast) -> None:
    try:
        app.sync.enqueue("a.kind")
    except StoreUnavailable as error:
        sys.stdout.write(f"{error}\n")


def enqueues_in_threads_until_the_end(app: Holdfast) -> None:
    """Daemon threads call while the exiting program closes the app."""
    called = threading.Barrier(5)

    def enqueue() -> None:
        app.sync.enqueue("a.kind")
        called.wait(30)
        try:
            while True:
                app.sync.enqueue("a.kind")
        except HoldfastError as error:
            sys.stdout.write(f"{type(error).__name__}: {error}; {error.__cause__}\n")

    threads = [threading.Thread(target=enqueue, daemon=True) for _ in range(4)]
    # Registered before the first call, so called after the portal has closed.
    for thread in threads:
        atexit.register(thread.join, 30)
    for thread in threads:
        thread.start()
    called.wait(30)


def enqueues_in_a_late_exit_handler(app: Holdfast) -> None:
    app.sync.jobs.count()
    atexit.register(app.sync.enqueue, "a.kind")


def forks(app: Holdfast) -> None:
    """The parent and the child both use the app, before and after the fork."""
    app.sync.enqueue("a.kind", {"from": "the parent"})
    child = os.fork()
    app.sync.enqueue("a.kind", {"from": "the child" if not child else "the parent again"})
    if child:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        app.sync.enqueue("a.kind", {"from": "the parent at the end"})


def waits(app: Holdfast) -> None:
    enqueued = app.sync.enqueue("a.kind")
    started = time.monotonic()
    try:
        sys.stdout.write("waiting\n")
        sys.stdout.flush()
        enqueued.result(timeout="1m")
    except KeyboardInterrupt:
        sys.stdout.write(f"interrupted {time.monotonic() - started < 30}\n")


if __name__ == "__main__":
    globals()[sys.argv[1]](Holdfast(sys.argv[2]))
