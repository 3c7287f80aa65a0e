"""End states in a form that can be compared, and the differences between two of them.

A state consists of collections of rows. A row is flat, with columns named by their path; rows have no order. Columns
that differ between two clean runs are left out of all further comparisons.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass

from holdfast.domain.job import Job
from holdfast.testing.idempotency.trace import Request, Step, shortened

Row = Mapping[str, object]
Rows = Sequence[Row]
Column = tuple[str, str]

JOBS = "enqueued jobs"
RESULT = "observed"
_NONE = "nothing"


@dataclass(frozen=True, slots=True)
class EndState:
    """Everything left after a run. `ended` is the state of the job, `error` its last error.

    `faults` are wrong regardless of what another run leaves.
    """

    ended: str
    error: str | None
    collections: Mapping[str, Rows]
    sent: Mapping[str, int]
    called: Mapping[str, int]
    faults: tuple[str, ...] = ()


def observed_rows(value: object) -> dict[str, Rows]:
    """Convert what an observer returned: a list is a collection of rows, anything else is one row."""
    collections: dict[str, list[Row]] = {}
    _collect(_plain(value), "", collections)
    return {name or RESULT: rows for name, rows in collections.items()}


def job_rows(jobs: Iterable[Job]) -> Rows:
    """The parts of a job that its producer determines, which excludes id, times and state."""
    return [
        _flat(
            {
                "kind": job.kind,
                "queue": job.queue,
                "tenant": job.tenant,
                "key": job.key,
                "priority": job.priority,
                "payload": job.payload,
                "headers": job.headers,
            }
        )
        for job in jobs
    ]


def sent_counts(requests: Iterable[Request]) -> dict[str, int]:
    """How often each request took effect. Requests with the same key or an idempotent method count once."""
    counts: Counter[str] = Counter()
    seen: set[tuple[str, str | None]] = set()
    for request in requests:
        if not request.has_effect:
            continue
        once = (str(request), None if request.is_idempotent else request.key)
        if (request.key is not None or request.is_idempotent) and once in seen:
            continue
        seen.add(once)
        counts[str(request)] += 1
    return dict(counts)


def late_steps(steps: Iterable[Step]) -> Iterator[str]:
    for step in dict.fromkeys(map(str, steps)):
        yield f"{step}: after the handler had returned, so a crash can lose it; wait for it in the handler"


def reused_keys(requests: Iterable[Request]) -> Iterator[str]:
    """Find keys sent with different bodies. A service refuses the second request, or repeats its first answer."""
    bodies: dict[tuple[str, str], set[str]] = {}
    for request in requests:
        if request.has_effect and request.key is not None and request.digest is not None:
            bodies.setdefault((str(request), request.key), set()).add(request.digest)
    for (request_line, _), digests in bodies.items():
        if len(digests) > 1:
            yield f"{request_line}: one Idempotency-Key came with {len(digests)} different bodies"


def volatile_columns(first: EndState, second: EndState) -> set[Column]:
    """Columns that two clean runs fill differently: times, random ids, attempts."""
    found: set[Column] = set()
    for name, rows in first.collections.items():
        others = second.collections.get(name, ())
        if len(rows) == len(others):
            columns = {column for row in (*rows, *others) for column in row}
            found |= {(name, each) for each in columns if _values(rows, each) != _values(others, each)}
    return found


def differences(clean: EndState, got: EndState, ignored: Collection[Column]) -> list[str]:
    """Describe how `got` differs from the end state of a clean run."""
    found = []
    if got.ended != clean.ended:
        found.append(f"the job is {got.ended} instead of {clean.ended}" + (f": {got.error}" if got.error else ""))
    found += [fault for fault in got.faults if fault not in clean.faults]
    found += _counts(clean.sent, got.sent, "sent")
    found += _counts(clean.called, got.called, "called")
    for name in dict.fromkeys([*clean.collections, *got.collections]):
        columns = {column for collection, column in ignored if collection == name}
        expected, actual = clean.collections.get(name, ()), got.collections.get(name, ())
        found += [
            f"{name}: {each}" for each in _row_differences(_without(expected, columns), _without(actual, columns))
        ]
    return found


def _counts(clean: Mapping[str, int], got: Mapping[str, int], verb: str) -> Iterator[str]:
    for what in dict.fromkeys([*clean, *got]):
        expected, actual = clean.get(what, 0), got.get(what, 0)
        if expected != actual:
            yield f"{what}: {verb} {_times(actual)} instead of {_times(expected)}"


def _times(number: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(number, f"{number} times")


def _row_differences(expected: list[Row], actual: list[Row]) -> Iterator[str]:
    missing, extra = _minus(expected, actual), _minus(actual, expected)
    for row in list(missing):
        partner = max(extra, key=lambda other: _shared(row, other), default=None)
        if partner is None or not _shared(row, partner):
            continue
        missing.remove(row)
        extra.remove(partner)
        yield _changed(row, partner)
    for row in missing:
        yield f"row missing: {_shown(row)}"
    for row, number in _counted(extra):
        before = sum(1 for each in expected if each == row)
        yield f"{number} more of {_shown(row)}" if before else f"row too many: {_shown(row)}"


def _changed(expected: Row, actual: Row) -> str:
    columns = dict.fromkeys([*expected, *actual])
    same = {name: expected[name] for name in columns if name in expected and expected.get(name) == actual.get(name)}
    changes = [
        f"{name or 'value'} is {actual.get(name, _NONE)!r} instead of {expected.get(name, _NONE)!r}"
        for name in columns
        if name not in same
    ]
    return f"{', '.join(changes)}" + (f" in {_shown(same)}" if same else "")


def _shared(row: Row, other: Row) -> int:
    """How similar two rows are. A row with a single value has nothing to recognize it by, so it is similar to any."""
    equal = sum(1 for name, value in row.items() if name in other and other[name] == value)
    return equal if len(row) > 1 else 1


def _minus(rows: Iterable[Row], others: Iterable[Row]) -> list[Row]:
    left = list(rows)
    for other in others:
        if other in left:
            left.remove(other)
    return left


def _counted(rows: Sequence[Row]) -> Iterator[tuple[Row, int]]:
    done: list[Row] = []
    for row in rows:
        if row not in done:
            done.append(row)
            yield row, sum(1 for each in rows if each == row)


def _without(rows: Rows, columns: Collection[str]) -> list[Row]:
    return [{name: value for name, value in row.items() if name not in columns} for row in rows]


def _values(rows: Rows, column: str) -> list[str]:
    return sorted(repr(row.get(column, _NONE)) for row in rows)


def _shown(row: Row) -> str:
    if list(row) == [""]:
        return repr(row[""])
    return shortened("{" + ", ".join(f"{name}: {value!r}" for name, value in row.items() if value is not None) + "}")


def _collect(value: object, path: str, collections: dict[str, list[Row]]) -> None:
    match value:
        case Mapping() if value:
            scalars = {}
            for name, part in value.items():
                if isinstance(part, Mapping | list):
                    _collect(part, f"{path}.{name}" if path else str(name), collections)
                else:
                    scalars[str(name)] = part
            if scalars:
                collections.setdefault(path, []).append(scalars)
        case list():
            collections.setdefault(path, []).extend(_flat(each) for each in value)
        case None:
            collections.setdefault(path, [])
        case _:
            collections.setdefault(path, []).append({"": value})


def _flat(value: object, path: str = "") -> dict[str, object]:
    match value:
        case Mapping() if value:
            parts = [(str(name), part) for name, part in value.items()]
        case list() if value:
            parts = [(str(index), part) for index, part in enumerate(value)]
        case _:
            return {path: value}
    flat: dict[str, object] = {}
    for name, part in parts:
        flat |= _flat(part, f"{path}.{name}" if path else name)
    return flat


def _plain(value: object) -> object:
    """Convert rows of any driver and values of any library to dictionaries, lists and scalars."""
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if hasattr(value, "model_dump"):
        return _plain(value.model_dump())
    if hasattr(value, "_mapping"):
        return _plain(dict(value._mapping))
    if hasattr(value, "items"):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(part) for part in value]
    return value
