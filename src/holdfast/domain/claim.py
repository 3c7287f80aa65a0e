"""The names of claims. A worker makes them, not the database, so no failover, restore or clock can repeat one.

The first half names the holder, which is one start of one worker. The second half has the length of the longest lease
that the claim asks for, in 16 bits, and counts the claims of the process. A lease has no other place for its length.
"""

import itertools
from datetime import timedelta
from math import ceil
from uuid import UUID, uuid4

_HOLDER_BITS = 64
_NUMBER_BITS = 48
_LENGTH_BITS = 16
_NUMBERS = itertools.count(1)
_LONGEST_SECONDS = (1 << _LENGTH_BITS) - 1
LONGEST_LENGTH = timedelta(seconds=_LONGEST_SECONDS)
"""Longer leases have this length in their claims."""


def new_holder() -> UUID:
    """The name of one start of one worker. It ends in zeros, where its claims have their number."""
    return holder_of(uuid4())


def new_claim(holder: UUID, seconds: int = 0) -> UUID:
    """The name of one request to the store, for leases of at most this length. A repeated request needs a new name."""
    return UUID(int=holder.int >> _HOLDER_BITS << _HOLDER_BITS | seconds << _NUMBER_BITS | next(_NUMBERS))


def seconds_of(length: timedelta) -> int:
    """A length as it is written in a claim."""
    seconds = ceil(length.total_seconds())
    return min(_LONGEST_SECONDS, seconds)


def length_of(claim: UUID) -> timedelta:
    """Keep in sync with lease_length.sql."""
    return timedelta(seconds=claim.int >> _NUMBER_BITS & _LONGEST_SECONDS)


def new_number() -> int:
    """A number that no claim has. It separates the claims before it from the claims after it."""
    return next(_NUMBERS)


def number_of(claim: UUID) -> int:
    return claim.int & (1 << _NUMBER_BITS) - 1


def holder_of(claim: UUID) -> UUID:
    return UUID(int=claim.int >> _HOLDER_BITS << _HOLDER_BITS)


def claims_of(holder: UUID) -> tuple[UUID, UUID]:
    """The lowest and the highest name that a claim of this holder can have."""
    lowest = holder_of(holder)
    return lowest, UUID(int=lowest.int | (1 << _HOLDER_BITS) - 1)
