"""What a call says is looked at before its connection, so that a slip is one line and not an error of the database."""

from collections.abc import Callable, Iterable, Mapping
from reprlib import repr as shortened

from holdfast.domain.errors import InvalidInput
from holdfast.domain.event import LARGEST_HEADERS
from holdfast.domain.job import NewJob
from holdfast.domain.json_text import Json, encode


def check_connection_comes_first(connection: object, call: str) -> None:
    """The commonest slip is to leave it out, as with `app.enqueue`, which needs none."""
    if isinstance(connection, str):
        raise InvalidInput(f"the connection comes first: {call}(connection, {shortened(connection)}, …)")
    if isinstance(connection, NewJob):
        raise InvalidInput(f"the connection comes first: {call}(connection, job)")


def given_job(build: Callable[..., NewJob], job: object, payload: object, options: Mapping[str, object]) -> NewJob:
    """The job that is built already, or the one that `build` makes of a kind, its payload and its options."""
    if isinstance(job, str):
        return build(job, payload, **options)
    if not isinstance(job, NewJob):
        raise InvalidInput(
            f"job: {shortened(job)} is neither a kind nor a job; give the kind as text, or what app.job(…) built"
        )
    if payload is not None or options:
        raise InvalidInput("this job has its payload and options already; give those to app.job(…)")
    return job


def check_job(job: object) -> NewJob:
    if not isinstance(job, NewJob):
        raise InvalidInput(f"job: {shortened(job)} is not a job; build it with app.job(kind, payload)")
    return job


def check_jobs(jobs: object) -> tuple[NewJob, ...]:
    if isinstance(jobs, NewJob):
        raise InvalidInput("jobs: this is one job; give it to enqueue_in, or give a list")
    if isinstance(jobs, str) or not isinstance(jobs, Iterable):
        raise InvalidInput(f"jobs: {shortened(jobs)} is not a list of jobs; build each with app.job(kind, payload)")
    listed = tuple(jobs)
    for each in listed:
        if not isinstance(each, NewJob):
            raise InvalidInput(f"jobs: {shortened(each)} is not a job; build each with app.job(kind, payload)")
    return listed


def encoded_headers(headers: Mapping[str, object] | None) -> Json | None:
    if headers is None:
        return None
    if not isinstance(headers, Mapping) or not all(isinstance(name, str) for name in headers):
        raise InvalidInput("headers: give a mapping with text names")
    return encode(dict(headers), name="headers", limit=LARGEST_HEADERS)
