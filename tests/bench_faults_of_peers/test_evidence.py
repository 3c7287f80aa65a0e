"""Histories of a peer's jobs, and what the judge finds in them."""

from uuid import UUID, uuid4

import pytest

from bench.faults_of_peers.cases import at_rate_after
from bench.faults_of_peers.evidence import End, evidence, number_attempts, run_more_than_once, started_again
from holdfast_lab.faults.judge import CHANGED, DUPLICATE, LOST, STALE_WRITE, count, judge
from holdfast_lab.faults.record import DONE, Note, What

LEASE = 3.0
JOB = uuid4()


def enqueued(job: UUID = JOB, peers_id: str = "7") -> list[Note]:
    return [
        Note(0, What.ENQUEUING, 1, job, more={"kind": "work"}),
        Note(0.1, What.ACCEPTED, 1, job, more={"id": peers_id}),
    ]


def start(at: float, token: str, pid: int) -> Note:
    return Note(at, What.START, pid, JOB, more={"token": token, "id": "7", "how": "wait"})


def end(at: float, token: str, pid: int, how: str = DONE) -> Note:
    return Note(at, What.END, pid, JOB, more={"token": token, "how": how})


def found(notes: list[Note], *ends: tuple[str, float], is_open: bool = False) -> dict[str, int]:
    final = [End(None, "7", state, at) for state, at in ends]
    return dict(count(judge(evidence(notes, final, [JOB] if is_open else [], LEASE))))


PAUSED = [
    *enqueued(),
    start(1, "a", 10),
    Note(2, What.CUT_OFF, 10),
    start(5, "b", 11),
    Note(6, What.BACK, 10),
    end(6.1, "a", 10),
]


@pytest.mark.parametrize("state", ["succeeded", "successful", "completed"])
def test_a_job_that_ran_once_is_fine_under_any_name_for_success(state: str) -> None:
    assert found([*enqueued(), start(1, "a", 10), end(2, "a", 10)], (state, 2.1)) == {}


def test_a_job_that_is_final_while_a_newer_attempt_runs_was_written_by_a_stale_one() -> None:
    assert found([*PAUSED, end(8, "b", 11)], ("successful", 6.2)) == {STALE_WRITE: 1}


def test_a_stale_write_is_found_even_if_the_newer_attempt_never_ends() -> None:
    assert found(PAUSED, ("successful", 6.2)) == {STALE_WRITE: 1}


def test_a_job_that_the_newer_attempt_finished_is_fine() -> None:
    assert found([*PAUSED, end(8, "b", 11)], ("successful", 8.1)) == {}


def test_a_job_that_is_reported_done_before_any_attempt_ended_is_lost_work() -> None:
    assert found([*enqueued(), start(1, "a", 10)], ("successful", 1.5)) == {LOST: 1}


def test_an_accepted_job_without_an_end_is_lost_unless_it_is_open() -> None:
    assert found(enqueued()) == {LOST: 1}
    assert found(enqueued(), is_open=True) == {}


def test_two_ends_of_a_job_are_a_change_of_its_final_state() -> None:
    assert found([*PAUSED, end(8, "b", 11)], ("successful", 6.2), ("successful", 8.1)) == {CHANGED: 1}


def test_a_second_attempt_while_the_first_worker_lives_has_no_explanation() -> None:
    notes = [*enqueued(), start(1, "a", 10), start(5, "b", 11), end(6, "b", 11)]
    assert found(notes, ("successful", 6.1)) == {DUPLICATE: 1}


def test_a_worker_that_ended_by_itself_explains_the_next_attempt() -> None:
    gone = Note(2, What.KILL, 10, more={"exit_code": 1})
    notes = [*enqueued(), start(1, "a", 10), gone, start(5, "b", 11), end(6, "b", 11)]
    assert found(notes, ("successful", 6.1)) == {}


def test_attempts_are_numbered_in_the_order_of_their_starts() -> None:
    numbered = number_attempts([*PAUSED, end(8, "b", 11)])
    assert [(note.what, note.fence) for note in numbered if note.fence] == [
        (What.START, 1),
        (What.START, 2),
        (What.END, 1),
        (What.END, 2),
    ]
    assert run_more_than_once(numbered) == 1
    assert started_again(numbered) == {"work: wait": 1}


def _steady(ends_from: float) -> list[Note]:
    """Accept ten jobs per second from second 10 on; workers finish as many from `ends_from` on."""
    accepted = [Note(10 + n / 10, What.ACCEPTED, 1, uuid4()) for n in range(100)]
    ends = [Note(ends_from + n / 10, What.END, 2, uuid4(), more={"how": DONE}) for n in range(60)]
    return sorted([*accepted, *ends], key=lambda note: note.at)


def test_workers_are_at_their_rate_when_they_finish_as_many_jobs_as_are_accepted() -> None:
    assert at_rate_after(_steady(12), moment=10, seconds=8) == pytest.approx(2, abs=0.2)


def test_workers_that_start_too_late_are_not_at_their_rate() -> None:
    assert at_rate_after(_steady(19), moment=10, seconds=8) is None
