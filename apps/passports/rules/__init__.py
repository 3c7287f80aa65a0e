"""The rule language: `parse` the source, `check_types` before anything runs, then `evaluate` with a snapshot's fields.

require capacity_kwh: number
optional model: text
let kwh_per_kg = capacity_kwh / mass_kg
check "stores energy": capacity_kwh > 0 and not (present model and model = "")
"""

from apps.passports.rules.checking import check_fields, check_types
from apps.passports.rules.evaluating import Evaluated, evaluate
from apps.passports.rules.parsing import parse
from apps.passports.rules.syntax import Package, RuleFailure, RuleSyntaxError, RuleTypeError, Value

__all__ = [
    "Evaluated",
    "Package",
    "RuleFailure",
    "RuleSyntaxError",
    "RuleTypeError",
    "Value",
    "check_fields",
    "check_types",
    "evaluate",
    "parse",
]
