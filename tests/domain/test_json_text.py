"""JSON as checked text: PostgreSQL accepts whatever passes, and what it would reject is refused first."""

import dataclasses
import json
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import NoReturn
from uuid import UUID

import psycopg
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.domain.errors import InvalidInput
from holdfast.domain.json_text import DEEPEST, LARGEST_PAYLOAD, check, decode, encode, parse, readable
from tests.databases import Servers
from tests.domain.answers import answer


@dataclasses.dataclass
class Invoice:
    number: int
    lines: list[object]


class Receipt(pydantic.BaseModel):
    number: int
    paid: Decimal
    at: datetime


class Color(Enum):
    RED = "red"


@pytest.fixture(scope="module")
def postgres(servers: Servers) -> Iterator["psycopg.Connection[tuple[bool]]"]:
    with psycopg.connect(servers.get("embedded-18").url(), autocommit=True) as connection:
        yield connection


def nested(depth: int, opening: str = "[") -> object:
    value: object = 1
    for _ in range(depth):
        value = [value] if opening == "[" else {"a": value}
    return value


any_text = st.text(st.characters(exclude_categories=()))
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(10**400), 10**400),
    st.floats(),
    any_text,
    st.sampled_from(
        ["\0", "a\0b", "\\u0000", "\\\\u0000", "\\\0", "\ud800", "\udfff\ud800", "\\ud800", "\U0001f600", '"']
    ),
    st.datetimes(timezones=st.none() | st.just(UTC)),
    st.decimals(),
    st.binary(max_size=5),
    st.uuids(),
    st.timedeltas(),
    st.sampled_from(list(Color)),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.tuples(inner, inner),
        st.sets(st.integers() | st.text(), max_size=3),
        st.dictionaries(
            st.text(st.characters(exclude_categories=())) | st.integers() | st.floats() | st.none(), inner, max_size=4
        ),
        st.builds(Invoice, st.integers(), st.lists(inner, max_size=3)),
    ),
    max_leaves=12,
)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts, inner),
    max_leaves=12,
)  # fmt: skip


@settings(max_examples=300)
@given(value=values)
def test_postgres_accepts_every_value_that_passes(postgres: "psycopg.Connection[tuple[bool]]", value: object) -> None:
    text, line = answer(lambda: encode(value))
    if text is None:
        assert line.startswith("payload: ")
        assert "\n" not in line
        return
    same = postgres.execute("SELECT %s::text::jsonb = %s::text::json::jsonb", (text, text)).fetchone()
    assert same == (True,)
    decode(text)


@given(value=plain)
def test_plain_values_survive_a_round_trip(value: object) -> None:
    assert decode(encode(value)) == value


@given(st.text(alphabet='{}[]",:0123456789\\u0d8 abnul'))
def test_any_typed_text_is_json_or_is_refused_in_one_line(text: str) -> None:
    found, line = answer(lambda: parse(text, name="payload"))
    if found is None:
        assert line.startswith("payload: ")
        assert "\n" not in line
    else:
        assert decode(found) == json.loads(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Invoice(17, [Decimal("1.10")]), '{"number":17,"lines":["1.10"]}'),
        (
            Receipt(number=1, paid=Decimal("2.50"), at=datetime(2030, 1, 1, tzinfo=UTC)),
            '{"number":1,"paid":"2.50","at":"2030-01-01T00:00:00Z"}',
        ),
        (datetime(2030, 1, 1, 12, tzinfo=UTC), '"2030-01-01T12:00:00Z"'),
        (date(2030, 1, 1), '"2030-01-01"'),
        (timedelta(minutes=1), '"PT1M"'),
        (UUID(int=7), '"00000000-0000-0000-0000-000000000007"'),
        (Color.RED, '"red"'),
        ({1: 2, None: 3, False: 4}, '{"1":2,"null":3,"false":4}'),
        ("ü\u2028\U0001f600", '"ü\u2028\U0001f600"'),
        (10**400, str(10**400)),
        ((1, 2), "[1,2]"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_common_types_are_encoded_as_expected(value: object, text: str) -> None:
    assert encode(value) == text


NOT_FINITE = "payload: cannot be written as JSON: Out of range float values are not JSON compliant"
SELF: list[object] = []
SELF.append(SELF)


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (float("nan"), NOT_FINITE),
        ([float("inf")], NOT_FINITE),
        (Invoice(1, [float("-inf")]), NOT_FINITE),
        ("a\0b", "payload: contains a NUL character, which PostgreSQL cannot store"),
        ({"a\0": 1}, "payload: contains a NUL character, which PostgreSQL cannot store"),
        (["\\\0"], "payload: contains a NUL character, which PostgreSQL cannot store"),
        ("\ud800", "payload: contains a lone surrogate, which is not a character"),
        ({"\udfff": 1}, "payload: contains a lone surrogate, which is not a character"),
        (SELF, "payload: nested deeper than 100 levels, or it contains itself"),
        (nested(DEEPEST + 1), f"payload: nested deeper than {DEEPEST} levels, or it contains itself"),
        (nested(DEEPEST + 1, "{"), f"payload: nested deeper than {DEEPEST} levels, or it contains itself"),
        (nested(100_000), f"payload: nested deeper than {DEEPEST} levels, or it contains itself"),
        ({(1, 2): 3}, "payload: cannot be written as JSON: keys must be str, int, float, bool or None, not tuple"),
        (object(), "payload: cannot be written as JSON: Unable to serialize unknown type: <class 'object'>"),
        ("x" * (LARGEST_PAYLOAD - 1), "payload: 1,048,577 bytes of JSON are over the limit of 1,048,576; store the"),
        ("ü" * (LARGEST_PAYLOAD // 2), "payload: 1,048,578 bytes of JSON are over the limit of 1,048,576; store the"),
    ],
)  # fmt: skip
def test_a_value_that_postgres_cannot_store_as_json_is_refused(value: object, line: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        encode(value)
    assert str(refused.value).startswith(line)
    assert "\n" not in str(refused.value)


class Speechless(ValueError):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class BrokenItems(dict[str, int]):
    def __init__(self, raised: Exception) -> None:
        super().__init__(a=1)
        self.raised = raised

    def items(self) -> NoReturn:
        raise self.raised


class BrokenModel(pydantic.BaseModel):
    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def share(self) -> float:
        return 1 / 0


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (BrokenModel(), "division by zero"),
        ([BrokenItems(LookupError("first\nsecond"))], "first"),
        (BrokenItems(Speechless()), "Speechless"),
        (BrokenItems(OSError()), "OSError"),
        ((number for number in [1]), "a generator may never end; make it a list"),
        ({"a": iter([1])}, "a list_iterator may never end; make it a list"),
    ],
)
def test_a_value_that_raises_while_encoded_is_refused_like_any_other(value: object, line: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        encode(value)
    assert str(refused.value) == f"payload: cannot be written as JSON: {line}"


def test_a_refusal_stays_short_however_long_the_quoted_error_is() -> None:
    with pytest.raises(InvalidInput) as refused:
        encode(BrokenItems(ValueError(10_000_000 * "x" + "\x1b[31m")))
    assert len(str(refused.value)) < 1_000
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("text", ['"\\ud800"', "[" * 300 + "]" * 300, "[1e999]", "[" + "1" * 5_000 + "]"])
def test_json_that_python_cannot_decode_is_shown_as_stored(text: str) -> None:
    assert readable(text) == text
    assert readable(f'{{"a": [1, "{10 * "ü"}"]}}') == {"a": [1, 10 * "ü"]}


def test_an_integer_with_too_many_digits_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"^payload: cannot be written as JSON: Exceeds the limit"):
        encode(10**5000)


def test_values_exactly_at_the_limits_are_allowed() -> None:
    assert decode(encode(nested(DEEPEST))) == nested(DEEPEST)
    assert len(encode("x" * (LARGEST_PAYLOAD - 2))) == LARGEST_PAYLOAD
    assert encode("[" * 500) == '"' + "[" * 500 + '"'
    assert encode("\\u0000") == '"\\\\u0000"'


def test_the_caller_chooses_the_name_and_the_limit() -> None:
    with pytest.raises(InvalidInput, match=r"^result: 12 bytes of JSON are over the limit of 10;"):
        encode("x" * 10, name="result", limit=10)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"a": "\\u0000"}', "body: contains a NUL character, which PostgreSQL cannot store"),
        ('"\\\\\\u0000"', "body: contains a NUL character, which PostgreSQL cannot store"),
        ('"\\ud800"', "body: contains a lone surrogate, which is not a character"),
        ('"\\uDC00\\uD800"', "body: contains a lone surrogate, which is not a character"),
        ('"\ud800"', "body: contains a lone surrogate, which is not a character"),
        ("[" * 101 + "]" * 101, f"body: nested deeper than {DEEPEST} levels, or it contains itself"),
    ],
)
def test_json_text_made_elsewhere_is_checked_too(text: str, line: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        check(text, name="body")
    assert str(refused.value) == line


@pytest.mark.parametrize("text", ['"\\ud83d\\ude00"', '"\\\\u0000"', '"\\\\ud800"', '["' + "[" * 200 + '"]'])
def test_json_that_only_looks_dangerous_passes(text: str) -> None:
    assert check(text) == text


@pytest.mark.parametrize("text", ["", "{", "[1,]", "nope", "'a'", "NaN", "[1e999]", "1" * 5000, "[" * 100_000])
def test_typed_text_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^payload: "):
        parse(text)
