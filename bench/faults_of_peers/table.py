"""Writes the results as the part of docs/reliability.md about peers."""

import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from bench.faults_of_peers.cases import CASES
from bench.faults_of_peers.systems import HERE, System, systems
from holdfast_lab.faults.judge import CHANGED, DUPLICATE, LOST, STALE_WRITE, STUCK, UNEXPECTED

_COLUMNS = (LOST, DUPLICATE, STALE_WRITE, STUCK)
_AT_RATE = "at its rate again after, s"
_NOT_JUDGED = """\
Some rules are not applied, because the peers provide nothing to judge them by: *job and effect disagree* (no finish in
the handler's transaction), *innocent death* and *attempt not counted* (no number of losses), the refusal of stale
renewals and the gap between renewals (invisible from outside), and a handler that holds the GIL (no process isolation).
They count as neither passed nor failed. *Stale write accepted* is judged by time, because most peers' tables have no
fence: the job became final after a newer attempt of it had started. *Unexplained duplicate*: a job was started again
although its worker had neither ended nor been stopped."""


def markdown(results: Mapping[str, Any]) -> str:
    return "\n".join((*_introduction(results), "", *_table(results), "", _NOT_JUDGED)) + "\n"


def _introduction(results: Mapping[str, Any]) -> Iterator[str]:
    machine = results["machine"]
    seeds = sorted({run["seed"] for run in results["runs"].values()})
    shown = ", ".join(f"seed {seed}" for seed in seeds)
    yield (
        f"{results['date']}, {machine['cores']} cores, Python {machine['python']}, three workers and a supervisor "
        f"that replaces a worker one second after it has ended by itself, {shown}: "
        f"`python -m bench.peers setup && python -m bench.faults_of_peers run --seed {seeds[0]}`."
    )
    yield _remarks()["how"]
    yield ""
    yield "Heartbeats and recovery are equally fast for all systems (defaults in brackets):"
    yield ""
    for system in _present(results):
        yield f"- {system.peer.name} {system.peer.version}: {system.settings}."


def _table(results: Mapping[str, Any]) -> Iterator[str]:
    yield f"| case | system | {' | '.join(_COLUMNS)} | drained after | run again | workers ended | what happened |"
    yield "|---|---|" + "---:|" * (len(_COLUMNS) + 3) + "---|"
    remarks = _remarks()
    for case in CASES:
        for system in _present(results):
            for run in results["runs"].values():
                if (run["case"], run["system"]) == (case.name, system.slug):
                    remark = remarks.get(case.name, {}).get(system.slug, "")
                    yield _row(f"{case.name}: {case.title}", system, run, remark)


def _remarks() -> dict[str, Any]:
    return tomllib.loads((HERE / "remarks.toml").read_text())


def _row(case: str, system: System, run: Mapping[str, Any], remark: str) -> str:
    violations = run["violations"]
    counts = [str(violations.get(kind, 0)) for kind in _COLUMNS]
    drained = run["figures"]["drained after, s"]
    also = [f"{violations[kind]} × {kind}." for kind in (UNEXPECTED, CHANGED) if kind in violations]
    if _AT_RATE in run["figures"]:
        after = run["figures"][_AT_RATE]
        also.append("Not at its rate within 8 s." if after is None else f"At its rate again after {after:g} s.")
    cells = [
        case,
        system.peer.name,
        *counts,
        "never" if drained is None else f"{drained:g} s",
        str(run["run more than once"]),
        str(run["worker exits"]),
        " ".join((remark, *also)).strip(),
    ]
    return f"| {' | '.join(cells)} |"


def _present(results: Mapping[str, Any]) -> list[System]:
    ran = {run["system"] for run in results["runs"].values()}
    return [system for slug, system in systems().items() if slug in ran]
