"""A case of the laboratory: a fault, its sizes and its needs."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from holdfast.domain.errors import InvalidInput

if TYPE_CHECKING:
    from holdfast_lab.faults.lab import Lab

Run = Callable[["Lab"], Awaitable[None]]
Registered = TypeVar("Registered", bound=Run)


class Need(StrEnum):
    """What a case needs besides a database."""

    OWN_SERVER = "its own PostgreSQL, which it stops or fills"
    RABBITMQ = "RabbitMQ"
    PGBOUNCER = "PgBouncer"
    STANDBY = "its own PostgreSQL with a standby"
    CLUSTER = "a Patroni cluster behind HAProxy and PgBouncer"
    TMPFS = "a small tmpfs, which only root can mount"


@dataclass(frozen=True, slots=True)
class Case:
    """`small` is the default size. A case without one runs only by name or with --soak."""

    name: str
    title: str
    run: Run
    small: Mapping[str, float] | None
    large: Mapping[str, float]
    needs: frozenset[Need]
    lease: float

    @property
    def is_short(self) -> bool:
        return self.small is not None

    def size(self, *, is_large: bool) -> Mapping[str, float]:
        return self.large if is_large or self.small is None else self.small


_CASES: dict[str, Case] = {}


def case(
    name: str,
    title: str,
    *,
    small: Mapping[str, float] | None = None,
    large: Mapping[str, float],
    needs: Iterable[Need] = (),
    lease: float = 3.0,
) -> Callable[[Registered], Registered]:
    """Register a function as a case. `lease` is the lease of its workers, in seconds."""

    def register(run: Registered) -> Registered:
        _CASES[name] = Case(name, title, run, small, large, frozenset(needs), lease)
        return run

    return register


def all_cases() -> list[Case]:
    """All cases, the R cases first, each letter in numeric order."""
    from holdfast_lab.faults import cases  # noqa: F401 - registers them

    return sorted(_CASES.values(), key=lambda each: (each.name[0] != "R", each.name[0], int(each.name[1:])))


def cases_named(names: Iterable[str]) -> list[Case]:
    known = {each.name: each for each in all_cases()}
    chosen = []
    for name in names:
        if name.upper() not in known:
            raise InvalidInput(f"cases: {name!r} is unknown; the cases are {', '.join(known)}")
        chosen.append(known[name.upper()])
    return chosen
