"""Evaluates a checked package. Numbers are decimal, so 0.1 + 0.2 = 0.3."""

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Context, Decimal, DivisionByZero, InvalidOperation, Overflow
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
    Present,
    RuleFailure,
    Unary,
    Value,
)

_DECIMALS = Context(prec=28, traps=[DivisionByZero, InvalidOperation, Overflow])


@dataclass(frozen=True, slots=True)
class Evaluated:
    values: dict[str, Value]
    """The value of each `let`."""
    checks: tuple[str, ...]
    """The titles of the checks, all of which were true."""


def evaluate(package: Package, fields: Mapping[str, Value]) -> Evaluated:
    """Raise RuleFailure with everything that is missing or broken. The types must have been checked before."""
    missing = [
        each.name
        for each in package.statements
        if isinstance(each, Field) and each.is_required and each.name not in fields
    ]
    if missing:
        raise RuleFailure(f"required but missing: {', '.join(missing)}")
    values: dict[str, Value] = dict(fields)
    defined: dict[str, Value] = {}
    passed: list[str] = []
    broken: list[str] = []
    for statement in package.statements:
        match statement:
            case Definition(name, expression):
                values[name] = defined[name] = _value(expression, values)
            case Check(title, expression):
                (passed if _is_true(expression, values) else broken).append(title)
            case Field():
                pass
            case _:
                assert_never(statement)
    if broken:
        raise RuleFailure(f"not fulfilled: {'; '.join(broken)}")
    return Evaluated(defined, tuple(passed))


def _value(expression: Expression, values: Mapping[str, Value]) -> Value:
    match expression:
        case Literal(value):
            return value
        case Name(name, place):
            if name not in values:
                raise RuleFailure(f"{place}: {name} has no value; test it with `present` first")
            return values[name]
        case Present(name):
            return name in values
        case Unary("not", operand):
            return not _is_true(operand, values)
        case Unary(_, operand):
            return -_number(operand, values)
        case Binary("and", left, right):
            return _is_true(left, values) and _is_true(right, values)
        case Binary("or", left, right):
            return _is_true(left, values) or _is_true(right, values)
        case Binary("=", left, right):
            return _value(left, values) == _value(right, values)
        case Binary("!=", left, right):
            return _value(left, values) != _value(right, values)
        case Binary():
            return _computed(expression, _number(expression.left, values), _number(expression.right, values))
        case _:
            assert_never(expression)


def _computed(expression: Binary, left: Decimal, right: Decimal) -> Value:
    try:
        match expression.operator:
            case "+":
                return _DECIMALS.add(left, right)
            case "-":
                return _DECIMALS.subtract(left, right)
            case "*":
                return _DECIMALS.multiply(left, right)
            case "/":
                return _DECIMALS.divide(left, right)
            case "<":
                return left < right
            case "<=":
                return left <= right
            case ">":
                return left > right
            case ">=":
                return left >= right
            case operator:
                raise AssertionError(f"{operator} is not an operator")
    except (ZeroDivisionError, InvalidOperation, Overflow) as error:
        raise RuleFailure(f"{expression.place}: {left} {expression.operator} {right} cannot be computed") from error


def _number(expression: Expression, values: Mapping[str, Value]) -> Decimal:
    value = _value(expression, values)
    assert isinstance(value, Decimal)  # noqa: S101 - the types were checked
    return value


def _is_true(expression: Expression, values: Mapping[str, Value]) -> bool:
    return _value(expression, values) is True
