"""What excuses a lost lease or a late rescue in a simulated schedule. All leases last one second."""

import math
from uuid import UUID

import pytest

from holdfast.domain.job import Lease
from holdfast_lab.faults.simulation.witness import Claimed, Cut, Span, Witness, is_explained

LONG = 5.0
"""Seconds until an answer comes: longer than any process waits."""


def process(*cuts: Cut, pauses: list[Span] | None = None, blocks: list[Span] | None = None) -> Witness:
    witness = Witness("p1", born_at=0.0, lease=1.0)
    witness.cuts += cuts
    witness.pauses += pauses or []
    witness.blocks += blocks or []
    return witness


def is_excused(by: Witness, *, heard_at: float = 10.0, since: float = 10.0) -> bool:
    """Whether the loss of a lease is excused that was claimed or last renewed at `since`."""
    return is_explained(Claimed(Lease(UUID(int=1), 1, UUID(int=2)), by, since, since + 1.0, heard_at))


def test_without_a_fault_no_loss_is_excused() -> None:
    assert not is_excused(process())


def test_a_death_excuses_a_loss() -> None:
    witness = process()
    witness.died_at = 10.9
    assert is_excused(witness)
    witness.died_at = 11.1
    assert not is_excused(witness)


@pytest.mark.parametrize("what", ["renew", "connect"])
@pytest.mark.parametrize("sent_at", [10.0, 10.35, 10.5])
def test_one_failed_request_of_the_lease_keeper_excuses_nothing(what: str, sent_at: float) -> None:
    assert not is_excused(process(Cut(what, sent_at, sent_at + LONG)))


def test_a_renewal_and_a_connection_that_fail_excuse_a_loss() -> None:
    assert is_excused(process(Cut("renew", 10.4, 10.4 + LONG), Cut("connect", 10.63, 10.63 + LONG)))


@pytest.mark.parametrize("what", ["claim", "finish", "rescue", "next due"])
def test_other_requests_excuse_no_loss(what: str) -> None:
    assert not is_excused(process(Cut(what, 9.0, 12.0)), since=10.0, heard_at=9.0)


@pytest.mark.parametrize(
    ("pause", "excused"), [((10.0, 10.6), False), ((10.3, 10.7), False), ((9.0, 10.3), False), ((10.3, 11.0), True)]
)
def test_a_pause_excuses_a_loss_if_no_time_is_left_after_it(pause: Span, excused: bool) -> None:
    assert is_excused(process(pauses=[pause])) is excused


def test_a_blocked_event_loop_excuses_a_loss_only_if_the_claim_could_not_be_read() -> None:
    witness = process(blocks=[(10.0, 10.95)])
    assert not is_excused(witness, heard_at=9.0)
    assert is_excused(witness, heard_at=10.95)
    assert is_excused(witness, heard_at=math.inf)


def test_a_short_block_is_no_reason_to_read_a_claim_late() -> None:
    assert not is_excused(process(blocks=[(10.0, 10.1)]), heard_at=10.95)


def test_a_claim_whose_answer_was_lost_excuses_the_loss_of_what_it_leased() -> None:
    claim = Cut("claim", 9.99, 10.05)
    assert is_excused(process(claim), heard_at=math.inf)
    assert not is_excused(process(claim, Cut("claim", 10.2, 10.3)), heard_at=10.05)
    assert not is_excused(process(Cut("claim", 10.2, 10.3)), heard_at=math.inf)


@pytest.mark.parametrize(
    ("what", "is_suspect", "excused"),
    [
        ("claim", False, True),
        ("claim", True, False),
        ("claim of suspects", True, True),
        ("claim of suspects", False, False),
    ],
)
def test_only_the_claim_that_leased_it_excuses_the_loss(what: str, is_suspect: bool, excused: bool) -> None:
    by = process(Cut(what, 9.99, 10.05))
    lost = Claimed(Lease(UUID(int=1), 1, UUID(int=2)), by, 10.0, 11.0, is_suspect=is_suspect)
    assert is_explained(lost) is excused


def test_faults_before_the_last_renewal_excuse_no_loss() -> None:
    """An interrupted handler is judged from its claim onward, a lost lease only from its last renewal."""
    lost = Claimed(Lease(UUID(int=1), 1, UUID(int=2)), process(pauses=[(9.0, 10.0)]), 8.0, 9.0, heard_at=8.0)
    lost.since, lost.until = 10.0, 11.0
    assert lost.claimed_at == 8.0
    assert not is_explained(lost)


def test_a_stopping_worker_is_excused_by_a_fault_that_kept_it_from_writing() -> None:
    witness = process(Cut("finish", 10.1, 12.0))
    assert not is_excused(witness)
    witness.stops_at = 10.0
    assert is_excused(witness)
    witness.stops_at = 10.9
    assert not is_excused(witness)


def test_a_worker_undisturbed_for_long_enough_should_have_looked() -> None:
    witness = process(Cut("rescue", 11.0, 11.5), pauses=[(13.0, 14.0)])
    assert witness.was_undisturbed(1.0, after=10.5, until=10.6)
    assert not witness.was_undisturbed(1.0, after=11.2, until=12.4)
    assert witness.was_undisturbed(1.0, after=11.2, until=12.5)
    assert witness.was_undisturbed(1.0, after=12.9, until=14.5)
    assert not witness.was_undisturbed(1.0, after=13.1, until=14.9)
    assert witness.was_undisturbed(1.0, after=13.1, until=15.0)


@pytest.mark.parametrize("end", ["stops_at", "died_at"])
def test_a_worker_that_is_down_need_not_look(end: str) -> None:
    witness = process()
    setattr(witness, end, 10.0)
    assert witness.was_undisturbed(1.0, after=9.9, until=20.0)
    assert not witness.was_undisturbed(1.0, after=10.1, until=20.0)


def test_a_worker_need_not_have_looked_before_its_start() -> None:
    assert not process().was_undisturbed(1.0, after=0.5, until=0.9)
