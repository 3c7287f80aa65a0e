"""The handlers under test, plus a job for each job of two kinds that dies."""

from holdfast_lab.faults.app import BAD, EXIT, Job, app, attempt

DEATH_APP = f"{__name__}:app"
MADE = {f"{kind}.dead": kind for kind in (BAD, EXIT)}

__all__ = ["DEATH_APP", "MADE", "app", "mourn"]


@app.on_dead(BAD)
@app.on_dead(EXIT)
async def mourn(job: Job) -> dict[str, int]:
    with attempt(job):
        return {"fence": job.fence}
