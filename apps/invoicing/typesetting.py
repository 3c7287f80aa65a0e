"""The program that sets invoices with typst in a separate process. rendering.py starts it and may kill it.

It reads a line of JSON for each invoice. It answers with a line that says whether typst accepted it and how many bytes
follow, and then the PDF or typst's message. It exits when its input ends, and so also when its worker ends.
"""

import json
import os
import signal
import sys
import threading
from datetime import datetime
from queue import SimpleQueue


def main() -> None:
    # A terminal's Ctrl-C and a supervisor's SIGTERM reach whole groups, and the worker decides what they mean.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    orders: SimpleQueue[bytes] = SimpleQueue()
    # Read in a thread, so an invoice that never finishes cannot keep the process from exiting.
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    while True:
        was_taken, content = _set(json.loads(orders.get()))
        head = json.dumps([was_taken, len(content)]).encode()
        sys.stdout.buffer.write(head + b"\n" + content)
        sys.stdout.buffer.flush()


def _read(orders: "SimpleQueue[bytes]") -> None:
    for line in sys.stdin.buffer:
        orders.put(line)
    os._exit(0)


def _set(order: dict[str, str]) -> tuple[bool, bytes]:
    import typst

    try:
        return True, typst.compile(
            order["template"],
            root=order["folder"],
            # Use only the fonts of typst and of the folder, so a page looks the same on every machine.
            ignore_system_fonts=True,
            font_paths=[order["fonts"]] if order["fonts"] else [],
            sys_inputs={"invoice": order["invoice"]},
            format="pdf",
            timestamp=datetime.fromisoformat(order["issued"]),
        )
    except typst.TypstError as error:
        return False, error.message.encode()


if __name__ == "__main__":
    main()
