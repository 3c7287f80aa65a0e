"""Checks the arguments of a call before its connection, so a mistake raises one line and not a database error."""

from collections.abc import Callable, Iterable, Mapping
from reprlib import repr as shortened
from typing import Any

from holdfast.domain.errors import InvalidInput
from holdfast.domain.event import LARGEST_HEADERS
from holdfast.domain.job import NewJob, Result
from holdfast.domain.json_text import Json, encode
from holdfast.domain.kinds import Kind
from holdfast.domain.versions import FIRST_VERSION, with_version


def given_job(build: Callable[..., NewJob], job: object, payload: object, options: Mapping[str, object]) -> NewJob:
    """Return the job if it is already built, else build it from a kind, its payload and its options."""
    if isinstance(job, (str, Kind)):
        return build(job, payload, **options)
    if not isinstance(job, NewJob):
        raise InvalidInput(f"kind: {shortened(job)} is not a kind; give its name, a Kind, or a job built by app.job(…)")
    if payload is not None or options:
        raise InvalidInput("this job already has its payload and options; give those to app.job(…)")
    return job


def check_jobs(jobs: Iterable[NewJob[Result]]) -> tuple[NewJob[Result], ...]:
    given: Any = jobs
    if isinstance(given, NewJob):
        raise InvalidInput("jobs: this is one job; give it to enqueue, or give a list")
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise InvalidInput(f"jobs: {shortened(given)} is not a list of jobs; build each with app.job(kind, payload)")
    listed = tuple(given)
    for each in listed:
        if not isinstance(each, NewJob):
            raise InvalidInput(f"jobs: {shortened(each)} is not a job; build each with app.job(kind, payload)")
    return listed


def encoded_headers(headers: Mapping[str, object] | None, version: int = FIRST_VERSION) -> Json | None:
    if headers is None and version == FIRST_VERSION:
        return None
    headers = {} if headers is None else headers
    if not isinstance(headers, Mapping) or not all(isinstance(name, str) for name in headers):
        raise InvalidInput("headers: give a mapping with text names")
    return encode(dict(with_version(headers, version)), name="headers", limit=LARGEST_HEADERS)
