"""Checks types before evaluation: of the expressions among themselves, and of a snapshot's fields."""

from collections.abc import Mapping
from typing import assert_never

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
    RuleTypeError,
    Type,
    Unary,
    Value,
)

_ARITHMETIC, _LOGIC, _ORDER = frozenset("+-*/"), frozenset({"and", "or"}), frozenset({"<", "<=", ">", ">="})


def check_types(package: Package) -> None:
    """Raise RuleTypeError for the first mistake. A name is known from its statement on, and means one thing."""
    known: dict[str, Type] = {}
    optional: set[str] = set()
    for statement in package.statements:
        if not isinstance(statement, Check) and statement.name in known:
            raise _mistake(statement.place, f"{statement.name} already has a meaning")
        match statement:
            case Field(name, type, is_required):
                known[name] = type
                if not is_required:
                    optional.add(name)
            case Definition(name, expression):
                known[name] = _type(expression, known, optional)
            case Check(title, expression):
                found = _type(expression, known, optional)
                if found is not Type.BOOLEAN:
                    raise _mistake(statement.place, f"the check {title!r} is a {found}, not a boolean")
            case _:
                assert_never(statement)


def check_fields(package: Package, fields: Mapping[str, Value]) -> None:
    """Raise RuleTypeError if a field of the snapshot does not have its declared type."""
    for statement in package.statements:
        if isinstance(statement, Field) and statement.name in fields:
            found = Type.of(fields[statement.name])
            if found is not statement.type:
                raise _mistake(
                    statement.place, f"{statement.name} is declared as {statement.type}, but the fact is a {found}"
                )


def _type(expression: Expression, known: Mapping[str, Type], optional: set[str]) -> Type:
    match expression:
        case Literal(value):
            return Type.of(value)
        case Name(name, place):
            if name not in known:
                raise _mistake(place, f"{name} is not declared")
            return known[name]
        case Present(name, place):
            if name not in optional:
                raise _mistake(place, f"{name} is not an optional field")
            return Type.BOOLEAN
        case Unary(operator, operand):
            wanted = Type.BOOLEAN if operator == "not" else Type.NUMBER
            _check_operand(operator, operand, wanted, known, optional)
            return wanted
        case Binary(operator, left, right) if operator in _LOGIC:
            for operand in (left, right):
                _check_operand(operator, operand, Type.BOOLEAN, known, optional)
            return Type.BOOLEAN
        case Binary(operator, left, right) if operator in _ARITHMETIC | _ORDER:
            for operand in (left, right):
                _check_operand(operator, operand, Type.NUMBER, known, optional)
            return Type.NUMBER if operator in _ARITHMETIC else Type.BOOLEAN
        case Binary(operator, left, right, place):
            one, other = _type(left, known, optional), _type(right, known, optional)
            if one is not other:
                raise _mistake(place, f"`{operator}` compares a {one} with a {other}")
            return Type.BOOLEAN
        case _:
            assert_never(expression)


def _check_operand(
    operator: str, operand: Expression, wanted: Type, known: Mapping[str, Type], optional: set[str]
) -> None:
    found = _type(operand, known, optional)
    if found is not wanted:
        raise _mistake(operand.place, f"`{operator}` needs a {wanted}, not a {found}")


def _mistake(place: Place, message: str) -> RuleTypeError:
    return RuleTypeError(f"{place}: {message}")
