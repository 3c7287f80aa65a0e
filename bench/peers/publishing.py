"""Objections that keep a record off the project's page, because a trial or half a run would be read as a result."""

from bench.peers import plan
from bench.peers.record import Line, Record
from bench.peers.settings import Settings


def objections(settings: Settings, record: Record) -> list[str]:
    found = []
    if (share := record.facts["share"]) < 1:
        found.append(f"it is a trial with {share:g} of the sizes")
    if record.facts["settings"] != settings.stated():
        found.append("settings.toml has changed since")
    return [*found, *(f"no {part}" for part in _gaps(settings, record))]


def _gaps(settings: Settings, record: Record) -> list[str]:
    """Parts with a missing turn. A failed turn is not missing, because the page reports it."""
    facts = record.facts
    chosen = [setting for setting in settings.settings if setting.peer.slug not in facts["missing"]]
    sides = [pair for pair in settings.pairs if pair.of in chosen and pair.against in chosen]
    # A part that was never requested is missing too.
    tasks = [
        *plan.pairs(sides, max(1, facts["pairs"]), facts["share"]),
        *plan.rounds(chosen, max(1, facts["rounds"]), facts["share"], plan.MEASURES),
    ]
    return list(dict.fromkeys(_shown(line) for line, _ in tasks if not record.has(line) and not record.failed(line)))


def _shown(line: Line) -> str:
    workers = f" with {line['workers']}" if "workers" in line else ""
    return f"{line['measure']} of {line['setting']}{workers} ({line['part']})"
