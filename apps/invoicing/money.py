"""Amounts: decimals with two places, rounded half up, never floats."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

_CENT = Decimal("0.01")


@dataclass(frozen=True, slots=True)
class Line:
    description: str
    quantity: Decimal
    unit_price: Decimal
    tax_rate: Decimal
    """In percent."""

    @property
    def net(self) -> Decimal:
        return rounded(self.quantity * self.unit_price)


@dataclass(frozen=True, slots=True)
class TaxSum:
    """The sum of all lines with one tax rate."""

    rate: Decimal
    net: Decimal
    tax: Decimal


@dataclass(frozen=True, slots=True)
class Totals:
    net: Decimal
    tax: Decimal
    by_rate: tuple[TaxSum, ...]

    @property
    def total(self) -> Decimal:
        return self.net + self.tax


def rounded(amount: Decimal) -> Decimal:
    """Round to cents. A very small discount gives 0.00, never -0.00."""
    return amount.quantize(_CENT, ROUND_HALF_UP) or Decimal("0.00")


def totals(lines: Iterable[Line]) -> Totals:
    """Sum the lines. Tax is rounded once per rate, not per line."""
    nets: dict[Decimal, Decimal] = {}
    for line in lines:
        nets[line.tax_rate] = nets.get(line.tax_rate, Decimal(0)) + line.net
    sums = tuple(TaxSum(rate, net, rounded(net * rate / 100)) for rate, net in sorted(nets.items()))
    return Totals(
        sum((each.net for each in sums), Decimal("0.00")), sum((each.tax for each in sums), Decimal("0.00")), sums
    )
