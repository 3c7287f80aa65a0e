"""How soon an idle worker gets a job, compared with a bare loop that claims on each notification."""

from bisect import bisect_right

from bench.targets.apps import NOTHING, STAMP
from bench.targets.figures import Figure, Line, at_most, below, share
from bench.targets.measuring import EMPTY, Bench, say
from bench.targets.producing import EnqueueInGaps
from bench.targets.server import SCHEMA, Stage
from bench.targets.workers import Crew, Stuck, at_work
from holdfast_lab.bench.apart import run_apart
from holdfast_lab.bench.bare import Gaps, notify_to_claim

GAPS = Gaps(0.02, 0.06)
_SLOWEST_MS = 5.0
_START = "pick-up to the handler's start"


async def pick_up(bench: Bench) -> Line:
    """Measure from the return of the commit in one process to the return of the claim, on both sides.

    Also measure to the start of the handler, which the bare loop does not have.
    """
    await bench.server.prepare(EMPTY)
    jobs = bench.sizes.pick_up
    starts: list[list[float]] = []

    async def by_worker(stage: Stage) -> list[float]:
        file = stage.server.folder / "claims-of-the-pick-up"
        file.write_text("")
        async with at_work(stage, Crew("stamping", program=("bench.targets.timed_worker", str(file)))):
            await stage.until_value(f"SELECT EXISTS (SELECT FROM {SCHEMA}.sleeper)")
            returned = await run_apart(EnqueueInGaps(stage.url, SCHEMA, jobs, GAPS, STAMP))
            await stage.until_value(
                f"SELECT count(*) = $1 FROM {SCHEMA}.finished WHERE id = ANY ($2)", len(returned), list(returned)
            )
        rows = await stage.connection.fetch(f"SELECT id, result::text::float8 AS at FROM {SCHEMA}.finished")
        stamps = {row["id"]: row["at"] for row in rows if row["id"] in returned}
        claims = claim_returns(file.read_text())
        starts.append([1000 * (at - returned[id]) for id, at in stamps.items()])
        return [claim_before(claims, at) - returned[id] for id, at in stamps.items()]

    async def bare(stage: Stage) -> list[float]:
        return await notify_to_claim(stage.url, SCHEMA, jobs, GAPS, kind=NOTHING)

    ours: list[list[float]] = []
    limits: list[list[float]] = []
    for number in range(bench.pairs):
        sides = [(by_worker, ours), (bare, limits)]
        for measure, found in sides if number % 2 == 0 else reversed(sides):
            found.append([1000 * seconds for seconds in await bench.on_copy(EMPTY, measure)])
        say(f"pick-up, pair {number + 1}: p50 {_share(ours[-1], 0.5):.2f} and {_share(limits[-1], 0.5):.2f} ms")
    return Line(
        [
            Figure("pick-up p50 against a bare NOTIFY-to-claim loop", _ratios(ours, limits), at_most(1.3), "ratio"),
            Figure(_START + " p99, all pairs together", [_share(_together(starts), 0.99)], below(_SLOWEST_MS), "ms"),
            Figure(_START + " p50 against the bare loop's claim", _ratios(starts, limits), None, "ratio"),
            Figure("pick-up p50", [_share(times, 0.5) for times in ours], None, "ms"),
            Figure(_START + " p50", [_share(times, 0.5) for times in starts], None, "ms"),
            Figure("bare loop p50", [_share(times, 0.5) for times in limits], None, "ms"),
            Figure("bare loop p99, all pairs together", [_share(_together(limits), 0.99)], None, "ms"),
        ],
        {"ms": ours, "start_ms": starts, "bare_ms": limits},
    )


def claim_returns(lines: str) -> list[float]:
    """When each claim that got jobs returned, in order, from the output of timed_worker.py."""
    claims = (tuple(float(part) for part in line.split()) for line in lines.splitlines())
    return sorted(sent + seconds for sent, seconds, jobs in claims if jobs)


def claim_before(returns: list[float], started: float) -> float:
    """The last claim before a handler's start got its job, because there is only one job at a time."""
    place = bisect_right(returns, started)
    if not place:
        raise Stuck("a handler started before any claim returned: the clocks cannot be trusted")
    return returns[place - 1]


def _ratios(ours: list[list[float]], limits: list[list[float]]) -> list[float]:
    return [against(_share(one, 0.5), _share(other, 0.5)) for one, other in zip(ours, limits, strict=True)]


def _together(runs: list[list[float]]) -> list[float]:
    return [time for times in runs for time in times]


def against(ours: float, bare: float) -> float:
    """A claim can return before the reply to its commit, but not half of all claims: then the clocks are wrong."""
    if bare <= 0:
        raise Stuck(f"the bare loop's p50 is {bare:.3f} ms, so nothing can be measured against it")
    return ours / bare


def _share(times: list[float], part: float) -> float:
    return share(sorted(times), part)
