"""The customer's side of the demo: a server, in a process of its own, that writes down every webhook it receives.

`python -m apps.passports.demo_receiver FILE` prints its port. It is slow, so that a killed worker dies while it sends,
and refuses some webhooks once, to show the retries.
"""

import base64
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

_REFUSED_EVERY = 6
_SLOW_SECONDS = 0.3


class Receiver(ThreadingHTTPServer):
    def __init__(self, log: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._log = log
        self._lock = Lock()
        self._seen: set[str] = set()

    def received(self, path: str, headers: dict[str, str], body: bytes) -> int:
        """Write the webhook down and return the status of the response."""
        with self._lock:
            delivery_id = headers.get("X-BPC-Delivery-Id", "")
            is_refused = delivery_id not in self._seen and len(self._seen) % _REFUSED_EVERY == 0
            self._seen.add(delivery_id)
            status = 503 if is_refused else 204
            told = {"path": path, "status": status, "headers": headers, "body": base64.b64encode(body).decode()}
            with self._log.open("a", encoding="utf-8") as log:
                log.write(json.dumps(told) + "\n")
        return status


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        time.sleep(_SLOW_SECONDS)
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        self.send_response(self.server.received(self.path, dict(self.headers), body))
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Stay silent: the log is the file."""


if __name__ == "__main__":
    receiver = Receiver(Path(sys.argv[1]))
    sys.stdout.write(f"{receiver.server_address[1]}\n")
    sys.stdout.flush()
    receiver.serve_forever()
