"""What a run measures, and in which order: first the pairs, then the rounds over all settings."""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

from bench.peers.measure import Bench, Figures
from bench.peers.record import Line
from bench.peers.settings import Pair, Setting

MEASURES = ("drain", "bulk", "single", "pickup")
WORKERS = (1, 2)

Task = tuple[Line, Callable[[Bench], Figures]]


def pairs(chosen: Sequence[Pair], number: int, share: float) -> Iterator[Task]:
    for turn in range(number):
        for pair in chosen:
            for workers in WORKERS:
                # Each side goes first as often as second, so that drift of the machine favors neither.
                for setting in (pair.of, pair.against) if turn % 2 == 0 else (pair.against, pair.of):
                    line = _line("pairs", turn, setting.slug, "drain", workers) | {"pair": pair.slug}
                    yield line, _drain(setting, workers, int(pair.jobs * share), paired=True)


def rounds(chosen: Sequence[Setting], number: int, share: float, measures: Sequence[str]) -> Iterator[Task]:
    for turn in range(number):
        first = turn * len(chosen) // number
        settings = [*chosen[first:], *chosen[:first]]
        # Enqueuing does not depend on worker settings, so it is measured once per peer.
        peers = list(dict.fromkeys(setting.peer for setting in settings))
        for measure in measures:
            match measure:
                case "drain":
                    for workers in WORKERS:
                        for setting in settings:
                            line = _line("rounds", turn, setting.slug, measure, workers)
                            yield line, _drain(setting, workers, int(setting.jobs * share), paired=False)
                case "pickup":
                    for setting in settings:
                        yield _line("rounds", turn, setting.slug, measure, 1), partial(Bench.pickup, setting=setting)
                case _:
                    enqueue = Bench.bulk if measure == "bulk" else Bench.single
                    for peer in peers:
                        yield _line("rounds", turn, peer.slug, measure), partial(enqueue, peer=peer)


def _drain(setting: Setting, workers: int, jobs: int, *, paired: bool) -> Callable[[Bench], Figures]:
    return partial(Bench.drain, setting=setting, workers=workers, jobs=jobs, paired=paired)


def _line(part: str, turn: int, who: str, measure: str, workers: int | None = None) -> Line:
    line: Line = {"part": part, "round": turn, "setting": who, "measure": measure}
    return line if workers is None else line | {"workers": workers}
