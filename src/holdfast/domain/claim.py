"""The names of claims. A worker makes them, not the database, so no failover, restore or clock can repeat one.

The first half names the holder, which is one start of one worker. The second half counts the claims of its process.
"""

import itertools
from uuid import UUID, uuid4

_NUMBER_BITS = 64
_NUMBERS = itertools.count(1)


def new_holder() -> UUID:
    """The name of one start of one worker. It ends in zeros, where its claims have their number."""
    return holder_of(uuid4())


def new_claim(holder: UUID) -> UUID:
    """The name of one request to the store. A repeated request needs a new name."""
    return UUID(int=holder.int >> _NUMBER_BITS << _NUMBER_BITS | next(_NUMBERS))


def new_number() -> int:
    """A number that no claim has. It separates the claims before it from the claims after it."""
    return next(_NUMBERS)


def number_of(claim: UUID) -> int:
    return claim.int & (1 << _NUMBER_BITS) - 1


def holder_of(claim: UUID) -> UUID:
    return UUID(int=claim.int >> _NUMBER_BITS << _NUMBER_BITS)


def claims_of(holder: UUID) -> tuple[UUID, UUID]:
    """The lowest and the highest name that a claim of this holder can have."""
    lowest = holder_of(holder)
    return lowest, UUID(int=lowest.int | (1 << _NUMBER_BITS) - 1)
