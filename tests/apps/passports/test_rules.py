"""The rule language: what it reads, which types it refuses, and what it computes."""

from decimal import Decimal

import pytest

from apps.passports.rules import (
    RuleFailure,
    RuleSyntaxError,
    RuleTypeError,
    Value,
    check_fields,
    check_types,
    evaluate,
    parse,
)

FIELDS: dict[str, Value] = {"a": Decimal(6), "b": Decimal("0.5"), "name": "LFP", "is_new": True}
DECLARED = "require a: number\nrequire b: number\nrequire name: text\nrequire is_new: boolean\noptional rest: number\n"


def computed(expression: str) -> Value:
    package = parse(f"{DECLARED}let result = {expression}")
    check_types(package)
    return evaluate(package, FIELDS).values["result"]


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("1 + 2 * 3", Decimal(7)),
        ("(1 + 2) * 3", Decimal(9)),
        ("10 - 4 - 3", Decimal(3)),
        ("a / b / 2", Decimal(6)),
        ("-a + 1", Decimal(-5)),
        ("- -a", Decimal(6)),
        ("2 * -b", Decimal(-1)),
        ("0.1 + 0.2 = 0.3", True),
        ("a > b", True),
        ("a >= 6 and a <= 6", True),
        ("a < 6 or b < 1", True),
        ("a = 6.0", True),
        ("a != 6", False),
        ('name = "LFP"', True),
        ('name != "LFP"', False),
        ("is_new = true", True),
        ("not is_new", False),
        ("not a = 7", True),
        ("not is_new and false", False),
        ("false and false or true", True),
        ("true or true and false", True),
        ("present rest", False),
        ("present rest and rest > 1", False),
        ("not present rest or rest > 1", True),
        ('"# no comment" = "x" # but this is', False),
    ],
)
def test_an_expression_has_its_value(expression: str, expected: Value) -> None:
    assert computed(expression) == expected


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("let x = 1 + true", "line 1, column 13: `+` needs a number, not a boolean"),
        ('let x = "a" < "b"', "line 1, column 9: `<` needs a number, not a text"),
        ('let x = 1 = "a"', "line 1, column 11: `=` compares a number with a text"),
        ("let x = not 1", "line 1, column 13: `not` needs a boolean, not a number"),
        ("let x = -true", "line 1, column 10: `-` needs a number, not a boolean"),
        ("let x = 1 and true", "line 1, column 9: `and` needs a boolean, not a number"),
        ("let x = y", "line 1, column 9: y is not declared"),
        ("let x = x", "line 1, column 9: x is not declared"),
        ("let x = 1\nlet x = 2", "line 2, column 1: x already has a meaning"),
        ("require x: text\noptional x: text", "line 2, column 1: x already has a meaning"),
        ('check "sum": 1 + 1', "line 1, column 1: the check 'sum' is a number, not a boolean"),
        ("require x: text\nlet y = present x", "line 2, column 9: x is not an optional field"),
        # Never evaluated, but wrong all the same.
        ("let x = true or 1 + false", "line 1, column 21: `+` needs a number, not a boolean"),
    ],
)
def test_a_type_error_is_reported_before_evaluation(source: str, message: str) -> None:
    with pytest.raises(RuleTypeError) as raised:
        check_types(parse(source))
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("let x =", "line 1, column 8: the line ends where a value is expected"),
        ("let 1 = 2", "line 1, column 5: 1 stands where a name is expected"),
        ("let not = 2", "line 1, column 5: not stands where a name is expected"),
        ("require x: date", "line 1, column 12: date stands where number, text or boolean is expected"),
        ("check stores: true", "line 1, column 7: stores stands where a title in double quotes is expected"),
        ('check "": true', 'line 1, column 7: "" stands where a title in double quotes is expected'),
        ("let x = (1", "line 1, column 11: the line ends where `)` is expected"),
        ("let x = 1 2", "line 1, column 11: 2 stands where the end of the line is expected"),
        ("let x = 1 < 2 < 3", "line 1, column 15: comparisons cannot be chained; join them with `and`"),
        ("let x = 1 ; 2", "line 1, column 11: ';' cannot begin anything here"),
        ('let x = "a', "line 1, column 9: '\"' cannot begin anything here"),
        ("x = 1", "line 1, column 1: x stands where require, optional, let or check is expected"),
        (f"let x = {'1 + ' * 200}1", "line 1, column 1: the statement is too long; split it with `let`"),
    ],
)
def test_a_syntax_error_has_a_place(source: str, message: str) -> None:
    with pytest.raises(RuleSyntaxError) as raised:
        parse(source)
    assert str(raised.value) == message


def test_the_deepest_expression_is_evaluated() -> None:
    assert computed(f"{'(' * 95}1{')' * 95}") == 1
    assert computed(f"{'not ' * 190}true") is True
    assert computed("1" + " + 1" * 95) == 96


def test_comments_and_blank_lines_do_not_matter() -> None:
    assert parse("\n# a comment\n  let x = 1  # another\n\n") == parse("let x = 1")


def test_everything_that_is_missing_is_named() -> None:
    with pytest.raises(RuleFailure, match=r"^required but missing: b, name$"):
        evaluate(parse("require a: number\nrequire b: number\nrequire name: text"), {"a": Decimal(1)})


def test_every_broken_check_is_named() -> None:
    package = parse('check "one": 1 > 2\ncheck "two": true\ncheck "three": false')
    with pytest.raises(RuleFailure, match=r"^not fulfilled: one; three$"):
        evaluate(package, {})
    assert evaluate(parse('check "two": true'), {}).checks == ("two",)


@pytest.mark.parametrize("expression", ["1 / 0", "0 / 0", "1 / (a - 6)"])
def test_a_division_by_zero_is_a_failure_with_a_place(expression: str) -> None:
    with pytest.raises(RuleFailure, match=r"^line 6, column \d+: .* cannot be computed$"):
        computed(expression)


def test_an_absent_optional_field_must_be_tested_first() -> None:
    with pytest.raises(RuleFailure, match="rest has no value; test it with `present` first"):
        computed("rest + 1")


@pytest.mark.parametrize(
    ("field", "value"), [("a", "six"), ("a", True), ("name", Decimal(1)), ("is_new", "yes"), ("rest", "much")]
)
def test_a_fact_of_another_type_than_declared_is_a_type_error(field: str, value: Value) -> None:
    package = parse(DECLARED)
    check_fields(package, FIELDS)
    with pytest.raises(RuleTypeError, match=f"{field} is declared as"):
        check_fields(package, {**FIELDS, field: value})
