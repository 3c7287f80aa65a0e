"""Parses the source of a rule package, one statement per line."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from apps.passports.rules.syntax import (
    Binary,
    Check,
    Definition,
    Expression,
    Field,
    Literal,
    Name,
    Package,
    Place,
    Present,
    RuleSyntaxError,
    Statement,
    Type,
    Unary,
)

# Limits the depth of an expression, and so the recursion of everything that walks it.
_MOST_TOKENS = 200
_KEYWORDS = frozenset({"require", "optional", "let", "check", "and", "or", "not", "present", "true", "false"})
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<number>\d+(?:\.\d+)?)
    | (?P<text>"[^"]*")
    | (?P<name>[a-z][a-z0-9_]*(?:\.[a-z][a-z0-9_]*)*)
    | (?P<sign>!=|<=|>=|[-+*/=<>():])
    | (?P<comment>\#.*)
    )""",
    re.VERBOSE | re.ASCII,
)
# The binary operators by how tightly they bind.
_STRENGTH = {
    "or": 1,
    "and": 2,
    **dict.fromkeys(("=", "!=", "<", "<=", ">", ">="), 4),
    **dict.fromkeys("+-", 5),
    **dict.fromkeys("*/", 6),
}
_NOT_STRENGTH, _COMPARISON_STRENGTH, _MINUS_STRENGTH = 3, 4, 7


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    place: Place


def parse(source: str) -> Package:
    statements: list[Statement] = []
    for number, line in enumerate(source.splitlines(), 1):
        tokens = list(_tokens(line, number))
        if tokens:
            statements.append(_Line(tokens, Place(number, len(line) + 1)).statement())
    return Package(tuple(statements))


def _tokens(line: str, number: int) -> Iterator[_Token]:
    at, end = len(line) - len(line.lstrip()), len(line.rstrip())
    while at < end:
        found = _TOKEN.match(line, at)
        if found is None:
            at = end - len(line[at:end].lstrip())
            raise RuleSyntaxError(f"{Place(number, at + 1)}: {line[at]!r} cannot begin anything here")
        kind = found.lastgroup or ""
        if kind != "comment":
            yield _Token(kind, found[kind], Place(number, found.start(kind) + 1))
        at = found.end()


class _Line:
    def __init__(self, tokens: list[_Token], end: Place) -> None:
        if len(tokens) > _MOST_TOKENS:
            raise RuleSyntaxError(f"{tokens[0].place}: the statement is too long; split it with `let`")
        self._tokens = tokens
        self._end = end
        self._at = 0

    def statement(self) -> Statement:
        first = self._next("a statement")
        statement: Statement
        match first.text:
            case "require" | "optional":
                name = self._name()
                self._expect(":")
                statement = Field(name, self._type(), first.text == "require", first.place)
            case "let":
                name = self._name()
                self._expect("=")
                statement = Definition(name, self._expression(0), first.place)
            case "check":
                title = self._next("a title in double quotes")
                if title.kind != "text" or len(title.text) == len('""'):
                    raise _wrong(title, "a title in double quotes")
                self._expect(":")
                statement = Check(title.text[1:-1], self._expression(0), first.place)
            case _:
                raise _wrong(first, "require, optional, let or check")
        if self._at < len(self._tokens):
            raise _wrong(self._tokens[self._at], "the end of the line")
        return statement

    def _expression(self, strength: int) -> Expression:
        """Parse as much as binds more tightly than `strength`."""
        left = self._operand()
        while (operator := self._peek()) is not None and _STRENGTH.get(operator.text, 0) > strength:
            if operator.kind == "text":
                break
            self._at += 1
            bound = _STRENGTH[operator.text]
            left = Binary(operator.text, left, self._expression(bound), operator.place)
            following = self._peek()
            if bound == _COMPARISON_STRENGTH and following and _STRENGTH.get(following.text) == bound:
                raise RuleSyntaxError(f"{following.place}: comparisons cannot be chained; join them with `and`")
        return left

    def _operand(self) -> Expression:
        token = self._next("a value")
        match token.kind, token.text:
            case "number", text:
                return Literal(Decimal(text), token.place)
            case "text", text:
                return Literal(text[1:-1], token.place)
            case "name", "true" | "false":
                return Literal(token.text == "true", token.place)
            case "name", "not":
                return Unary("not", self._expression(_NOT_STRENGTH), token.place)
            case "name", "present":
                return Present(self._name(), token.place)
            case "name", name if name not in _KEYWORDS:
                return Name(name, token.place)
            case "sign", "-":
                return Unary("-", self._expression(_MINUS_STRENGTH), token.place)
            case "sign", "(":
                inner = self._expression(0)
                self._expect(")")
                return inner
            case _:
                raise _wrong(token, "a value")

    def _name(self) -> str:
        token = self._next("a name")
        if token.kind != "name" or token.text in _KEYWORDS:
            raise _wrong(token, "a name")
        return token.text

    def _type(self) -> Type:
        token = self._next("a type")
        if token.text not in list(Type):
            raise _wrong(token, "number, text or boolean")
        return Type(token.text)

    def _expect(self, sign: str) -> None:
        token = self._next(f"`{sign}`")
        if (token.kind, token.text) != ("sign", sign):
            raise _wrong(token, f"`{sign}`")

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self, wanted: str) -> _Token:
        token = self._peek()
        if token is None:
            raise RuleSyntaxError(f"{self._end}: the line ends where {wanted} is expected")
        self._at += 1
        return token


def _wrong(token: _Token, wanted: str) -> RuleSyntaxError:
    return RuleSyntaxError(f"{token.place}: {token.text} stands where {wanted} is expected")
