"""Checks options that are passed on as keyword arguments, so that errors are about the caller's call, not ours."""

import difflib
from collections.abc import Callable, Collection, Iterable
from functools import wraps
from inspect import Parameter, signature
from typing import ParamSpec, TypeVar

from holdfast.domain.errors import InvalidInput

Arguments = ParamSpec("Arguments")
Made = TypeVar("Made")


def check_options(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """Reject unknown options. `what` is the thing they belong to, for example "a job"."""
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise InvalidInput(f"{what} has no option {name!r}; {advice}")


def options_of(what: str) -> Callable[[Callable[Arguments, Made]], Callable[Arguments, Made]]:
    """Decorate a function that creates `what` and whose keyword-only parameters are its options."""

    def decorate(make: Callable[Arguments, Made]) -> Callable[Arguments, Made]:
        parameters = signature(make).parameters
        known = [each.name for each in parameters.values() if each.kind is Parameter.KEYWORD_ONLY]
        are_known = frozenset(parameters).issuperset

        @wraps(make)
        def checked(*given: Arguments.args, **named: Arguments.kwargs) -> Made:
            if named and not are_known(named):
                check_options(what, (name for name in named if name not in parameters), known)
            return make(*given, **named)

        return checked

    return decorate
