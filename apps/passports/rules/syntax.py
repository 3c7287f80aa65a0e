"""The parsed form of a rule package: statements and expressions, each with its place in the source."""

from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum

Value = Decimal | str | bool


class RuleSyntaxError(Exception):
    """The source is not in the rule language."""


class RuleTypeError(Exception):
    """An operator or a field has a value of the wrong type. Reported before evaluation."""


class RuleFailure(Exception):
    """The snapshot breaks the rules: a required field is missing, a check is false, or a value cannot be computed."""


class Type(StrEnum):
    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "boolean"

    @classmethod
    def of(cls, value: Value) -> "Type":
        # A bool first, because it would otherwise count as a number in Python.
        if isinstance(value, bool):
            return cls.BOOLEAN
        return cls.NUMBER if isinstance(value, Decimal) else cls.TEXT


@dataclass(frozen=True, slots=True)
class Place:
    line: int
    column: int

    def __str__(self) -> str:
        return f"line {self.line}, column {self.column}"


@dataclass(frozen=True, slots=True)
class Literal:
    value: Value
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class Name:
    name: str
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class Present:
    """True if an optional field has a value."""

    name: str
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class Unary:
    operator: str
    operand: "Expression"
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class Binary:
    operator: str
    left: "Expression"
    right: "Expression"
    place: Place = field(compare=False)


Expression = Literal | Name | Present | Unary | Binary


@dataclass(frozen=True, slots=True)
class Field:
    """`require name: type` or `optional name: type`."""

    name: str
    type: Type
    is_required: bool
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class Definition:
    """`let name = expression`."""

    name: str
    expression: Expression
    place: Place = field(compare=False)


@dataclass(frozen=True, slots=True)
class Check:
    """`check "title": expression`."""

    title: str
    expression: Expression
    place: Place = field(compare=False)


Statement = Field | Definition | Check


@dataclass(frozen=True, slots=True)
class Package:
    statements: tuple[Statement, ...]
