"""As much of PostgreSQL's protocol as a proxy needs: where messages end, which statement a client executes, and which
answer belongs to it.

Pure: bytes in, what happened out. Other protocols (RabbitMQ's, for one) are told by their first bytes and pass as they
come.
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
    """Cuts what one side sends into whole messages, however the network has cut it."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, received: bytes) -> Iterator[bytes]:
        pending = self._rest + received
        start = 0
        while len(pending) - start >= 5:
            # No message is shorter than its own length: whatever comes, each step is one forward.
            end = start + 1 + max(4, _READ(pending, start + 1)[0])
            if end > len(pending):
                break
            yield pending[start:end]
            start = end
        self._rest = pending[start:]


class Opening:
    """What a client sends before its first message: what to pass on, and what the proxy answers in the server's place.

    The proxy must be able to read what follows, so it refuses encryption, as a server without certificates does.
    """

    def __init__(self) -> None:
        self._pending = b""
        self.is_over = False
        self.is_postgres = True

    def take(self, received: bytes) -> tuple[bytes, bytes]:
        """What goes on to the server, and what back to the client. When `is_over`, messages or other bytes follow."""
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
        """What came with the opening and belongs to the messages."""
        return self._pending


class Conversation:
    """Follows one connection: which statements are executed, and how many of its requests are answered.

    A request is answered by ReadyForQuery. By then the server has committed what was to be committed: a COMMIT, and as
    much a single statement outside a transaction, which has none.
    """

    def __init__(self) -> None:
        # The start is a request as well: authentication ends with ReadyForQuery.
        self.asked = 1
        self.answered = 0
        self._statements: dict[bytes, str] = {}
        self._portals: dict[bytes, str] = {}
        self._is_by_execute = False

    def statement_of(self, message: bytes) -> str | None:
        """Takes note of a client's message: the statement that the server is to execute with it, if there is one."""
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
        """The number of the answer to the statement whose message has just been noted."""
        return self.asked + self._is_by_execute

    def hear(self, message: bytes) -> None:
        """Takes note of a server's message."""
        if message[:1] == b"Z":
            self.answered += 1
        elif asks_for_rows(message) and self._is_by_execute:
            # The server reads the data of a COPY and passes over the Sync that came before it.
            self.asked -= 1


def asks_for_rows(message: bytes) -> bool:
    """Whether the server says with it that a COPY may send its rows."""
    return message[:1] == b"G"


def is_meant(statement: str, of: str) -> bool:
    """Whether `of` means this statement: by its first word if that is COMMIT, or else by any text in it.

    READ COMMITTED is no COMMIT. Case and comments make no difference.
    """
    bare = _COMMENT.sub(" ", statement).casefold()
    wanted = of.casefold()
    if wanted == "commit":
        return bool(re.match(r"\s*(commit|end)\b", bare))
    return wanted in bare


def _text(encoded: bytes) -> str:
    return encoded.decode(errors="replace")
