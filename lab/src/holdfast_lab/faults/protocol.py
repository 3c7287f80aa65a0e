"""As much of PostgreSQL's protocol as a proxy needs: where messages end, which statement a client executes, and which
answer belongs to it.

Pure: bytes in, events out. Other protocols, such as RabbitMQ's, are recognized by their first bytes and pass unchanged.
"""

import re
import struct
from collections.abc import Iterator

_VERSIONS = range(3 << 16, 4 << 16)
_CANCEL, _TLS, _GSS = 80877102, 80877103, 80877104
_READ = struct.Struct("!i").unpack_from
_STARTUP = struct.Struct("!ii")
_LARGEST_STARTUP = 100_000
_COMMENT = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)


class Messages:
    """Reassembles one side's bytes into whole messages, no matter how the network split them."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, received: bytes) -> Iterator[bytes]:
        pending = self._rest + received
        start = 0
        while len(pending) - start >= 5:
            # No message is shorter than its length field, so each step moves forward, no matter what comes.
            end = start + 1 + max(4, _READ(pending, start + 1)[0])
            if end > len(pending):
                break
            yield pending[start:end]
            start = end
        self._rest = pending[start:]


class Opening:
    """What a client sends before its first message: what to pass on, and what the proxy answers for the server.

    The proxy must be able to read what follows, so it refuses encryption, like a server without certificates.
    """

    def __init__(self) -> None:
        self._pending = b""
        self.is_over = False
        self.is_postgres = True

    def take(self, received: bytes) -> tuple[bytes, bytes]:
        """Return the bytes for the server and those for the client. Once `is_over`, messages or other bytes follow."""
        self._pending += received
        refusals = b""
        while len(self._pending) >= _STARTUP.size:
            size, code = _STARTUP.unpack_from(self._pending)
            if (code not in _VERSIONS and code not in (_CANCEL, _TLS, _GSS)) or not 8 <= size <= _LARGEST_STARTUP:
                self.is_postgres, self.is_over = False, True
                break
            if len(self._pending) < size:
                break
            if code not in (_TLS, _GSS):
                self.is_over = True
                break
            self._pending = self._pending[size:]
            refusals += b"N"
        if not self.is_over:
            return b"", refusals
        if not self.is_postgres:
            passed, self._pending = self._pending, b""
            return passed, refusals
        size = _STARTUP.unpack_from(self._pending)[0]
        passed, self._pending = self._pending[:size], self._pending[size:]
        return passed, refusals

    @property
    def rest(self) -> bytes:
        """Bytes that came with the opening but belong to the messages."""
        return self._pending


class Conversation:
    """Follows one connection: which statements it executes, and how many of its requests have been answered.

    ReadyForQuery answers a request. By then the server has committed whatever the request commits: a COMMIT, or a
    single statement outside a transaction, which needs none.
    """

    def __init__(self) -> None:
        # The startup counts as a request: authentication ends with ReadyForQuery.
        self.asked = 1
        self.answered = 0
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        self._is_by_execute = False

    def statement_of(self, message: bytes) -> str | None:
        """Process a client's message, and return the statement that it makes the server execute, if any."""
        match message[:1]:
            case b"Q":
                self.asked += 1
                self._is_by_execute = False
                return _text(message[5:].rstrip(b"\0"))
            case b"P":
                name, statement, _ = message[5:].split(b"\0", 2)
                self._statements[name] = _text(statement)
            case b"B":
                portal, name, _ = message[5:].split(b"\0", 2)
                self._portals[portal] = self._statements.get(name, "")
            case b"E":
                self._is_by_execute = True
                return self._portals.get(message[5:].split(b"\0", 1)[0], "")
            case b"S" | b"F":
                self.asked += 1
            case _:
                pass
        return None

    @property
    def answer_of_next(self) -> int:
        """The number of the answer to the latest statement."""
        return self.asked + self._is_by_execute

    def hear(self, message: bytes) -> None:
        """Process a server's message."""
        if message[:1] == b"Z":
            self.answered += 1
        elif asks_for_rows(message) and self._is_by_execute:
            # The server reads the data of a COPY and skips the Sync that came before it.
            self.asked -= 1


def asks_for_rows(message: bytes) -> bool:
    """Whether with this message the server asks for the rows of a COPY."""
    return message[:1] == b"G"


def is_meant(statement: str, of: str) -> bool:
    """Whether `of` matches this statement: "commit" by its first word, anything else as text anywhere in it.

    READ COMMITTED is not a COMMIT. Case and comments make no difference.
    """
    bare = _COMMENT.sub(" ", statement).casefold()
    wanted = of.casefold()
    if wanted == "commit":
        return bool(re.match(r"\s*(commit|end)\b", bare))
    return wanted in bare


def _text(encoded: bytes) -> str:
    return encoded.decode(errors="replace")
