"""The names of claims, which no failover, restore or clock can give out twice: a worker makes them, not a database.

The first half names the holder, one start of one worker; the second half counts the claims of its process.
"""

import itertools
from uuid import UUID, uuid4

_NUMBER_BITS = 64
_NUMBERS = itertools.count(1)


def new_holder() -> UUID:
    """For one start of one worker. It ends with zeros, where its claims have their numbers."""
    return holder_of(uuid4())


def new_claim(holder: UUID) -> UUID:
    """For one request: asked again, a store must be given another name."""
    return UUID(int=holder_of(holder).int | next(_NUMBERS))


def holder_of(claim: UUID) -> UUID:
    return UUID(int=claim.int >> _NUMBER_BITS << _NUMBER_BITS)


def claims_of(holder: UUID) -> tuple[UUID, UUID]:
    """The lowest and the highest name that a claim of this holder can have."""
    lowest = holder_of(holder)
    return lowest, UUID(int=lowest.int | (1 << _NUMBER_BITS) - 1)
