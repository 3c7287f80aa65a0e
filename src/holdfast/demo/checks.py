"""The demo's claims, each checked against the database."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

import asyncpg

from holdfast.demo.orders import INVOICES, PAYMENTS, Picture
from holdfast.domain.job import Job, JobState


@dataclass(frozen=True, slots=True)
class Claim:
    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Happened:
    """What the story itself knows: how many jobs it enqueued, and which ones the killed worker held."""

    enqueued: int
    same_key: tuple[UUID, UUID]
    held_at_kill: frozenset[UUID]
    exit_code: int


async def claims(url: str, picture: Picture, happened: Happened) -> list[Claim]:
    counts = {state: picture.states.get(state, 0) for state in JobState}
    succeeded, failed, dead = counts[JobState.SUCCEEDED], counts[JobState.FAILED], counts[JobState.DEAD]
    busy, crashed = picture.with_error("MAIL_SERVER_BUSY"), picture.with_error("PROCESS_DIED")
    rows, numbers = await _ledger(url)
    held = [job for job in picture.jobs if job.id in happened.held_at_kill]
    first, second = happened.same_key
    return [
        Claim(
            f"Nothing was lost: {happened.enqueued} enqueued = {picture.finished} finished "
            f"({succeeded} succeeded + {failed} failed + {dead} dead).",
            happened.enqueued == len(picture.jobs) == picture.finished == succeeded + failed + dead,
        ),
        Claim(
            f"The killed worker held {len(happened.held_at_kill)} jobs; the other worker finished all of them.",
            bool(picture.rescued)
            and len(held) == len(happened.held_at_kill)
            and all(job.state.is_final for job in held),
        ),
        Claim(
            f"Each of the {INVOICES} invoices is in the ledger exactly once, despite the kill.",
            rows == numbers == INVOICES and len(picture.of_kind("invoice.issue")) == INVOICES,
        ),
        Claim(f"{len(busy)} emails hit a busy mail server and went out on the next attempt.", _all_succeeded(busy)),
        Claim(
            f"{PAYMENTS} payments were snoozed until the bank was ready, which used up no attempts.",
            all(job.attempt - job.losses == 1 for job in picture.of_kind("payment.check")),
        ),
        Claim(
            "A handler's process crashed: only its own attempt failed, and the next one succeeded.",
            _all_succeeded(crashed),
        ),
        Claim("A hopeless job was not retried: failed after 1 attempt.", _ended(picture, JobState.FAILED, 1)),
        Claim(
            "A job that kept failing is kept for inspection: dead after 3 attempts.", _ended(picture, JobState.DEAD, 3)
        ),
        Claim("Enqueuing twice with the same key made one job.", first == second),
        Claim("The second worker stopped cleanly when asked to.", happened.exit_code == 0),
    ]


def _all_succeeded(jobs: Sequence[Job]) -> bool:
    return bool(jobs) and all(job.state is JobState.SUCCEEDED for job in jobs)


def _ended(picture: Picture, state: JobState, attempts: int) -> bool:
    found = [job for job in picture.jobs if job.state is state]
    return len(found) == 1 and found[0].attempt - found[0].losses == attempts


async def _ledger(url: str) -> tuple[int, int]:
    connection = await asyncpg.connect(url)
    try:
        row = await connection.fetchrow("SELECT count(*), count(DISTINCT number) FROM public.invoice")
        return (row[0], row[1]) if row else (0, 0)
    finally:
        await connection.close()
