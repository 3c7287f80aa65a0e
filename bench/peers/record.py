"""The results of a run, one JSON line per measurement, so that an interrupted run can continue."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Line = dict[str, Any]
_KEY = ("part", "round", "pair", "setting", "measure", "workers")
_SAME = {
    "machine": "machine",
    "server": "server",
    "share": "share of the sizes",
    "holdfast_commit": "commit of Holdfast",
    "installed": "versions of the peers",
    "settings": "settings",
}
"""What figures must have in common to be compared, and how messages name it."""
_FACTS = {*_SAME, "date", "commands", "rounds", "pairs", "missing"}


class RecordError(Exception):
    """The file does not contain the results of a run."""


@dataclass(slots=True)
class Record:
    path: Path
    facts: dict[str, Any] = field(default_factory=dict)
    lines: list[Line] = field(default_factory=list)
    failures: list[Line] = field(default_factory=list)

    @classmethod
    def open(cls, path: Path) -> "Record":
        record = cls(path)
        for text in path.read_text(errors="replace").splitlines() if path.exists() else ():
            try:
                line = json.loads(text)
            except ValueError as error:
                raise RecordError(f"{path} is not a file of results: {text[:60]!r}") from error
            match line:
                case {"facts": dict(facts)}:
                    if lacking := _FACTS - facts.keys():
                        raise RecordError(f"{path} was written by another version: no {', '.join(sorted(lacking))}")
                    record.facts = facts
                case {"part": _, "round": _}:
                    record._keep(line)
                case _:
                    raise RecordError(f"{path} is not a file of results: {text[:60]!r}")
        return record

    def begin(self, facts: Mapping[str, Any]) -> None:
        """Record what the figures depend on. Raises an error if the existing ones depend on something else."""
        # Compare the value as it will be read back, because a tuple differs from the list that it becomes.
        now: dict[str, Any] = json.loads(json.dumps(facts))
        if self.facts:
            if changed := [shown for name, shown in _SAME.items() if self.facts[name] != now[name]]:
                raise RecordError(f"{self.path} was begun with another {' and '.join(changed)}: choose another --out")
            commands = list(dict.fromkeys([*self.facts["commands"], *now["commands"]]))
            most = {name: max(self.facts[name], now[name]) for name in ("rounds", "pairs")}
            now = self.facts | most | {"commands": commands}
        if now != self.facts:
            self.facts = now
            self._write({"facts": now})

    def has(self, key: Line) -> bool:
        return _is_among(self.lines, key)

    def failed(self, key: Line) -> bool:
        return _is_among(self.failures, key) and not self.has(key)

    def add(self, line: Line) -> None:
        self._keep(line)
        self._write(line)

    def _keep(self, line: Line) -> None:
        (self.failures if "error" in line else self.lines).append(line)

    def _write(self, line: Line) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def _is_among(lines: list[Line], key: Line) -> bool:
    return any(all(line.get(name) == key.get(name) for name in _KEY) for line in lines)
