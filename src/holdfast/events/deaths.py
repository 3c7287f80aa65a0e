"""The rules of `@app.on_dead`, a subscription to jobs that end `failed` or `dead`.

Neighbors: subscriptions.py keeps the subscriptions that code declares, domain/dead_job.py has the event's type and
payload.
"""

from holdfast.domain.dead_job import DEATHS
from holdfast.domain.errors import InvalidInput
from holdfast.events.subscriptions import Subscribed


def name_of_deaths(kind: str, name: str | None) -> str:
    """The kind of the jobs that these deaths make."""
    if name is not None:
        return name
    if kind.endswith("*"):
        raise InvalidInput(f"on_dead: {kind!r} matches several kinds; use name= to name the kind of the jobs to make")
    return f"{kind}.dead"


def check_not_of_deaths(subscribed: Subscribed, kind: str) -> None:
    """The death of a job that a death made makes no job, so that there are no chains."""
    if any(each.name == kind and each.pattern.startswith(DEATHS) for each in subscribed):
        raise InvalidInput(f"on_dead: jobs of kind {kind!r} are made by deaths themselves, so their deaths make no job")
