"""Hostile input made from a seed: values, exceptions, names, settings and requests that no user intends.

The same `Random` makes the same input again. Neighbors: cases/inputs.py hands it to a store and a worker; the tests
draw the seeds. This module does not know how Holdfast should respond.
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, computed_field

from holdfast.domain.errors import Cancel, Permanent, Retryable, Snooze

Made = TypeVar("Made")
Maker = Callable[[Random], Made]

DEEP = 10_000
LARGE = 10_000_000
MANY_DIGITS = 5_000

_TEXTS = (
    "",
    " ",
    "a\x00b",
    "\x00",
    "\\u0000",
    "\\\\\x00",
    "\ud800",
    "\udfff\ud800",
    "\ud83d\ude00",
    "x\udc80y",
    "\u202etxet",
    "\u200f\u200e\u2066",
    "\u2028\u2029\x85",
    "\ufeff\ufffe",
    "\x1b[2J\x1b[31m",
    "\x07\x08\x7f",
    "a\r\nb\tc",
    "e\u0301 é",
    "\U0001f600\U0010ffff",
    "'; DROP SCHEMA holdfast CASCADE; --",
    '"holdfast".job',
    "$1 $$ %s %(a)s {0} {a} %",
    "[bold red]x[/] [/]",
    "<script>alert(1)</script>",
    "NULL",
    "null",
    "{}",
    "../../etc/passwd",
    "ﬀ ß İ \u0131",
)


class Unshown:
    """Showing it fails, and so does encoding it as JSON."""

    def __repr__(self) -> NoReturn:
        raise RuntimeError("no repr\nof two lines")

    def __str__(self) -> NoReturn:
        raise OSError("no str")

    def __json__(self) -> NoReturn:
        raise ValueError("no JSON")


class FailingItems(dict[str, object]):
    def __init__(self, raised: Exception) -> None:
        super().__init__(a=1)
        self._raised = raised

    def items(self) -> NoReturn:
        raise self._raised


class FailingModel(BaseModel):
    number: int = 1

    @computed_field  # type: ignore[prop-decorator]
    @property
    def share(self) -> float:
        return self.number / 0


class FailingClass:
    @property  # type: ignore[misc]
    def __class__(self) -> NoReturn:  # type: ignore[override]
        raise LookupError("no class")


@dataclass
class Inner:
    value: object


class Speechless(Exception):
    """An exception that cannot produce its message."""

    def __str__(self) -> NoReturn:
        raise RuntimeError("not even this")


class Evil(BaseException):
    """An exception whose message raises another one like it."""

    def __str__(self) -> NoReturn:
        raise Evil


class BrokenText(str):
    __slots__ = ()

    def replace(self, *_: object) -> NoReturn:
        raise RuntimeError("no replacement")

    def encode(self, *_: object) -> NoReturn:
        raise RuntimeError("no bytes")


class OwnWords(Exception):
    def __str__(self) -> str:
        return BrokenText("in its own words")


class BrokenNotes(Exception):
    @property
    def __notes__(self) -> NoReturn:  # type: ignore[override]
        raise RuntimeError("no notes")


class Forgetful(Permanent):
    """A signal that skips the initializer of its base class, so it lacks the attributes that the engine reads."""

    def __init__(self) -> None:
        Exception.__init__(self, "forgot its base class")


class OddlyNamed(Exception):
    pass


OddlyNamed.__qualname__ = "Odd\x00\ud800\n" + 10_000 * "x"


def text(random: Random) -> str:
    """Text of all kinds, sometimes several kinds in one."""
    parts = [random.choice(_TEXTS) for _ in range(random.choice((1, 1, 2, 3)))]
    if random.random() < 0.3:
        parts.append("".join(chr(random.randrange(0x11_0000)) for _ in range(random.randrange(1, 20))))
    return "".join(parts)


def plain(random: Random, depth: int = 3) -> object:
    """A value that JSON allows and PostgreSQL can keep, so that not everything is refused."""
    if depth and random.random() < 0.5:
        number = random.randrange(4)
        if random.random() < 0.5:
            return [plain(random, depth - 1) for _ in range(number)]
        return {f"{key} ü'\"\\ {random.randrange(9)}": plain(random, depth - 1) for key in range(number)}
    choices: Sequence[Maker[object]] = (
        lambda random: random.choice((None, True, False, 0, -1, "", "\\u0000", "'; --", "ü\u2028\U0001f600")),
        lambda random: random.randrange(-(10**300), 10**300),
        lambda random: random.uniform(-1e300, 1e300),
        lambda random: "".join(chr(random.randrange(0x20, 0xD800)) for _ in range(random.randrange(30))),
    )
    return random.choice(choices)(random)


def _nested(random: Random) -> object:
    depth = random.choice((99, 100, 101, 200, 1_000, DEEP))
    return _nest(depth, is_list=random.random() < 0.5)


def _nest(depth: int, *, is_list: bool) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value] if is_list else {"a": value}
    return value


def _cycle(random: Random) -> object:
    items: list[object] = []
    held: dict[str, object] = {"items": items}
    items.append(held if random.random() < 0.5 else items)
    return held


def _odd_keys(random: Random) -> object:
    key: Any = random.choice(((1, 2), b"a", 1.5, float("nan"), None, True, 10**MANY_DIGITS, text(random)))
    return {key: 1}


def _forever(random: Random) -> object:
    return (number * random.randrange(9) for number in itertools.count())


# The weight of each maker. The large and deep values take time, and one of them is as good as many.
_VALUES: Sequence[tuple[int, Maker[object]]] = (
    (20, plain),
    (20, text),
    (10, lambda random: {"a": [text(random)], text(random): 1}),
    (8, lambda random: random.choice((float("nan"), float("inf"), [1.0, float("nan")], Decimal("sNaN")))),
    (4, _nested),
    (1, lambda random: LARGE * random.choice("xü\x00")),
    (1, lambda _: {"many": list(range(LARGE // 50))}),
    (4, lambda random: random.choice((1, -1)) * 10 ** random.choice((20, 400, 4_299, 4_300, MANY_DIGITS))),
    (8, _odd_keys),
    (4, _cycle),
    (4, lambda random: random.choice((b"", b"ok", b"\xff\x00", bytearray(b"\x80"), memoryview(b"a")))),
    (4, lambda _: Unshown()),
    (4, lambda random: [FailingItems(random.choice((LookupError("a\nb"), ValueError(LARGE * "x"), Speechless())))]),
    (4, lambda random: Inner(random.choice((FailingModel(), FailingClass(), Unshown(), {1, 2}, text(random))))),
    (2, _forever),
    (4, lambda random: random.choice((timedelta.max, datetime.now(UTC), Decimal(1), 1j, object, print))),
)


ALWAYS: dict[str, Callable[[], object]] = {
    "10 MB": lambda: LARGE * "x",
    "deep": lambda: _nest(DEEP, is_list=True),
    "NaN": lambda: {"a": float("nan")},
    "NUL": lambda: "a\x00b",
    "a lone surrogate": lambda: "\ud800",
}
"""Values that every run must include. None of them can be stored."""


def value(random: Random) -> object:
    """A value for a payload, a result, a header or progress."""
    return _weighted(random, _VALUES)


def headers(random: Random) -> Any:  # noqa: ANN401 - wrong types are among them
    """Headers: mostly a mapping with text keys."""
    if random.random() < 0.2:
        return random.choice(([1], "a", 5, b"a", {1: 2}, {None: 1}, {(1,): 1}))
    return {text(random): value(random)} if random.random() < 0.5 else {"a": plain(random)}


def _signal(random: Random) -> BaseException:
    word: Any = random.choice((text(random), LARGE * "x", Unshown(), 5, None, b"\xff"))
    signals: Sequence[Callable[[], BaseException]] = (
        lambda: Permanent(word, text(random)),
        lambda: Permanent(text(random), word),
        lambda: Retryable(word, code=text(random)),
        lambda: Cancel(word),
        Forgetful,
        _spoilt,
    )
    return random.choice(signals)()


def _spoilt() -> BaseException:
    """A signal that was valid when it was made."""
    signal = Snooze("1h")
    signal.after = -5  # type: ignore[assignment]
    return signal


def _chained(random: Random) -> BaseException:
    error: BaseException = Speechless()
    for _ in range(random.choice((1, 50))):
        outer = ValueError(text(random))
        outer.__cause__ = error
        error = outer
    return error


_EXCEPTIONS: Sequence[tuple[int, Maker[BaseException]]] = (
    (20, lambda random: ValueError(text(random))),
    (2, lambda random: ValueError(LARGE * random.choice("xü\x00\ud800"))),
    (8, lambda random: KeyError(value(random))),
    (8, lambda _: Speechless()),
    (8, lambda _: Evil()),
    (6, lambda _: OwnWords()),
    (6, lambda _: BrokenNotes("with notes")),
    (6, lambda _: OddlyNamed("hello")),
    (16, _signal),
    (6, _chained),
    (4, lambda random: ExceptionGroup(text(random), [ValueError(text(random)) for _ in range(200)])),
    (6, lambda _: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "a\x00b")),
    (8, lambda random: random.choice((KeyboardInterrupt, SystemExit, GeneratorExit, asyncio.CancelledError))("\x00")),
    (6, lambda random: random.choice((StopIteration, StopAsyncIteration, RecursionError, MemoryError))(text(random))),
)


def exception(random: Random) -> BaseException:
    """An exception that a handler may raise."""
    return _weighted(random, _EXCEPTIONS)


def name(random: Random) -> Any:  # noqa: ANN401 - wrong types are among them
    """A name for a queue, a tenant, a kind or a key."""
    choices: Sequence[tuple[int, Maker[object]]] = (
        (6, text),
        (6, lambda random: random.choice(("", " ", "  a", "a  ", "A", "a", "é", "e\u0301", "ß", "ss", "*", "default"))),
        (3, lambda random: random.choice("xü\U0001f600") * random.choice((99, 100, 101, 200, 201, 500, 501, 100_000))),
        (3, lambda random: random.choice((0, 1, False, None, 1.5, b"a", [], {}, Unshown(), 10**MANY_DIGITS))),
        (3, lambda random: "".join(chr(random.randrange(0x21, 0x3000)) for _ in range(random.randrange(1, 40)))),
    )
    return _weighted(random, choices)


def schema(random: Random) -> Any:  # noqa: ANN401 - wrong types are among them
    """A schema name, rarely a usable one."""
    usual: Any = random.choice(
        ("", "pg_a", "information_schema", 'a"b', "a'b", "a.b", "1a", "-a", "x" * 64, "ä", "a;b")
    )
    return usual if random.random() < 0.5 else name(random)


def setting(random: Random) -> str:
    """Text that the environment can hold: no NUL, and only the surrogates that stand for undecodable bytes."""
    usual = ("-1", "0", "1e3", "1_000", "0x10", "NaN", "inf", "5", "5m", "-5m", "1h1h", "9" * 5_000, "x" * 50_000, "٣s")
    made = random.choice(usual) if random.random() < 0.4 else text(random)
    return "".join(character for character in made if fits_environment(character))


def fits_environment(character: str) -> bool:
    return character != "\x00" and not (0xD800 <= ord(character) < 0xDC80 or 0xDCFF < ord(character) < 0xE000)


def request(random: Random) -> bytes:
    """The bytes of an HTTP request, or something similar. It may end in the middle."""
    method = random.choice((b"GET", b"GET", b"HEAD", b"POST", b"get", b"", b"\x00", b"G" * 70_000, b"PRI"))
    path = random.choice((b"/live", b"/ready", b"/health?a=\x00", b"*", b"", b"//live", b"/" + b"x" * 70_000, b"/\xff"))
    version = random.choice(
        (b"HTTP/1.1", b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9.9", b"HTTP/x", b"HTTP/1.1.1", b"", b"\x00")
    )
    fields = [random.choice(_FIELDS) for _ in range(random.choice((0, 1, 2, 150)))]
    end = random.choice((b"\r\n", b"\r\n", b"\n", b"\r"))
    body = random.choice((b"", b"", b"{}", b"x" * 300_000, b"0\r\n\r\n", b"\x00" * 100))
    whole = end.join([b" ".join((method, path, version)), *fields, b"", body])
    if random.random() < 0.2:
        whole = bytes(random.randrange(256) for _ in range(random.randrange(200)))
    return whole[: random.randrange(len(whole) + 1)] if random.random() < 0.3 else whole


_FIELDS = (
    b"Host: a",
    b"Content-Length: 5",
    b"Content-Length: -1",
    b"Content-Length: 99999999999999999999",
    b"Transfer-Encoding: chunked",
    b"Expect: 100-continue",
    b"Connection: keep-alive",
    b"Upgrade: h2c",
    b": no name",
    b"no colon",
    b" folded",
    b"A: " + b"x" * 70_000,
    b"\x00: \xff",
)


def json_of_others(random: Random) -> str:
    """JSON text that `encode` never produces but PostgreSQL accepts, as a producer in another language may send it."""
    return random.choice(
        (
            '"\\ud800"',
            '{"\\udfff": 1}',
            '"\\u0000"',
            "[" * 300 + "]" * 300,
            "[1e999, -1e999]",
            "1" * MANY_DIGITS,
            '{"a": 1, "a": 2}',
            " null ",
            "5",
            '"text"',
            json.dumps(plain(random)),
        )
    )


def _weighted(random: Random, makers: Sequence[tuple[int, Maker[Made]]]) -> Made:
    (make,) = random.choices([make for _, make in makers], [weight for weight, _ in makers])
    return make(random)


def seeds(random: Random) -> Iterator[int]:
    """Seeds that make one input each, so that a failure can be reproduced without the inputs before it."""
    while True:
        yield random.getrandbits(32)
