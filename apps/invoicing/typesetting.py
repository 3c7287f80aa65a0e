"""The program that sets one invoice with typst, in a process of its own: rendering.py starts it, and may kill it.

A line of JSON comes in, and the PDF goes out, or an error with the exit code REFUSED. The input stays open while the
worker lives: when it ends, so does this program. It imports little, because it starts once for each page.
"""

import json
import os
import signal
import sys
import threading
from datetime import datetime

REFUSED = 3
"""The exit code if typst does not take the template: no repetition can cure that."""


def main() -> int:
    # A terminal's Ctrl-C and a supervisor's SIGTERM go to whole groups, and the worker decides what they mean.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    asked = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_the_worker, daemon=True).start()

    import typst

    try:
        content = typst.compile(
            asked["template"],
            root=asked["folder"],
            # Those of typst itself and of the folder, so that a page looks the same on every machine.
            ignore_system_fonts=True,
            font_paths=asked["fonts"],
            sys_inputs={"invoice": asked["invoice"]},
            format="pdf",
            timestamp=datetime.fromisoformat(asked["issued"]),
        )
    except typst.TypstError as error:
        sys.stdout.buffer.write(error.message.encode())
        return REFUSED
    sys.stdout.buffer.write(content)
    return 0


def _end_with_the_worker() -> None:
    # Not by sys.stdin, whose lock this thread would still hold when the interpreter ends.
    os.read(0, 1)
    os._exit(1)


if __name__ == "__main__":
    code = main()
    sys.stdout.buffer.flush()
    os._exit(code)
