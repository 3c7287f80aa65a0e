"""`python -m bench.peers`: compares Holdfast with PgQueuer, Procrastinate, graphile-worker and awa-pg.

`setup` installs the peers into separate environments, `run` measures, and `report` writes the tables and the plot of
docs/benchmarks.md.
"""

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

from bench.peers import plan, plot, publishing, tables
from bench.peers.databases import Databases
from bench.peers.environments import Environments, SetupError
from bench.peers.facts import facts
from bench.peers.measure import Bench, MeasureError
from bench.peers.record import Record, RecordError
from bench.peers.settings import HERE, ROOT, Setting, Settings
from bench.peers.summary import Summary
from holdfast.domain.errors import HoldfastError
from holdfast.store.embedded import EmbeddedAddress, EmbeddedServer

_DOCS = ROOT / "docs"
_PAGE = "benchmarks.md"
_IMAGE = "images/peers.svg"
_SHOWN = 5


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environments", type=Path, help="where the peers are installed (default: the user's cache)")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("setup", help="install the peers")
    run = commands.add_parser("run", help="measure, and append each figure to a file of results")
    run.add_argument("--url", help="PostgreSQL server to measure on (default: an embedded one, removed afterwards)")
    run.add_argument("--rounds", type=_number, default=3, help="rounds over all settings (default: %(default)s)")
    run.add_argument("--pairs", type=_number, default=7, help="side-by-side drains of each pair (default: %(default)s)")
    run.add_argument("--pairs-only", action="store_true", help="skip the rounds")
    run.add_argument("--only", help="measure only these peers or settings: holdfast,graphile/best")
    run.add_argument("--measures", help=f"measure only these in the rounds: {','.join(plan.MEASURES)} (default: all)")
    run.add_argument("--share", type=_share, default=1.0, help="share of the sizes, for trials (default: %(default)s)")
    run.add_argument("--out", type=Path, help="file of results; measurements already in it are skipped")
    report = commands.add_parser("report", help="write the tables and the plot of docs/benchmarks.md")
    report.add_argument("results", type=Path)
    report.add_argument(
        "--docs",
        type=Path,
        default=_DOCS,
        help="folder of the page (default: docs); trials need another folder that has such a page",
    )
    return parser.parse_args()


def _number(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number, 0 or more")
    return int(text)


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0.01 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, from 0.01 to 1")
    return share


def setup(settings: Settings, environments: Environments) -> None:
    """Install missing peers. Skip those that cannot be installed here, unless that leaves none."""
    others = [peer for peer in settings.peers if not peer.is_own]
    failed = []
    for peer in others:
        if environments.missing(peer) is not None:
            say(f"installing {peer.name} {peer.version}")
            try:
                environments.install(peer)
            except SetupError as error:
                say(str(error))
                failed.append(peer.name)
    if failed and len(failed) == len(others):
        raise SetupError("no peer could be installed")
    if failed:
        say(f"warning: not installed, so not measured: {', '.join(failed)}")


def run(settings: Settings, environments: Environments, options: argparse.Namespace) -> None:
    chosen = []
    for setting in _settings(settings, options.only):
        if why := environments.missing(setting.peer):
            say(f"{setting.slug} is left out: {why}")
        else:
            chosen.append(setting)
    sides = [pair for pair in settings.pairs if pair.of in chosen and pair.against in chosen]
    measures = _words(options.measures, plan.MEASURES) or plan.MEASURES
    out = options.out or HERE / "results" / f"{time.strftime('%Y-%m-%d-%H%M', time.gmtime())}.jsonl"
    record = Record.open(out)
    with ExitStack() as stack:
        databases = Databases(options.url or stack.enter_context(_embedded()))
        stack.callback(databases.close)
        which = "the embedded one, over its socket" if options.url is None else "a given one"
        asked = {
            "commands": [command(options)],
            "rounds": 0 if options.pairs_only else options.rounds,
            "pairs": options.pairs,
            "share": options.share,
        }
        record.begin(facts(settings, environments, databases, which) | asked)
        bench = Bench(environments, databases, settings.sizes.reduced(options.share))
        tasks = list(plan.pairs(sides, options.pairs, options.share))
        if not options.pairs_only:
            tasks += plan.rounds(chosen, options.rounds, options.share, measures)
        _measure(bench, record, tasks)
    say(f"results: {out}")


def command(options: argparse.Namespace) -> str:
    """The command for others to repeat the run, without anything specific to this machine."""
    words = ["run", "--rounds", str(options.rounds), "--pairs", str(options.pairs)]
    words += ["--pairs-only"] if options.pairs_only else []
    words += ["--only", options.only] if options.only else []
    words += ["--measures", options.measures] if options.measures else []
    words += ["--share", f"{options.share:g}"] if options.share < 1 else []
    words += ["--url", "URL"] if options.url else []
    return " ".join(words)


def report(settings: Settings, results: Path, docs: Path) -> None:
    record = Record.open(results)
    if not record.facts:
        raise RecordError(f"{results} has no results")
    if docs.resolve() == _DOCS and (objections := publishing.objections(settings, record)):
        shown = "; ".join(objections[:_SHOWN]) + ("; …" if len(objections) > _SHOWN else "")
        raise RecordError(f"{results} is not fit for the project's page, choose another folder with --docs: {shown}")
    page, image = docs / _PAGE, docs / _IMAGE
    page.write_text(tables.put(page.read_text(), tables.section(settings, record)))
    image.parent.mkdir(exist_ok=True)
    image.write_text(plot.picture(settings, Summary.read(record)))
    say(f"wrote {page} and {image}")


@contextmanager
def _embedded() -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="bench-peers-", ignore_cleanup_errors=True) as folder,
        EmbeddedServer.start(EmbeddedAddress(Path(folder, "postgres"))) as server,
    ):
        yield server.url()


def _measure(bench: Bench, record: Record, tasks: Sequence[plan.Task]) -> None:
    left = [(line, task) for line, task in tasks if not record.has(line)]
    for number, (line, task) in enumerate(left, 1):
        what = f"{number}/{len(left)} {line['part']} {line['round'] + 1} {line['setting']} {line['measure']}"
        what += f" {line['workers']}" if "workers" in line else ""
        try:
            figures = task(bench)
        except (MeasureError, psycopg.Error) as error:
            # A failed task must not cost the others their figures; the report shows the gap.
            record.add(line | {"error": str(error)})
            say(f"{what}: {error}")
        else:
            record.add(line | figures)
            shown = f"{figures['rate']:,.0f} jobs/s" if "rate" in figures else f"{figures['p50']} / {figures['p99']} ms"
            say(f"{what}: {shown}")


def _settings(settings: Settings, only: str | None) -> list[Setting]:
    known = [slug for each in settings.settings for slug in (each.peer.slug, each.slug)]
    words = _words(only, known)
    return [each for each in settings.settings if not words or {each.slug, each.peer.slug} & set(words)]


def _words(text: str | None, known: Sequence[str]) -> list[str]:
    words = [word.strip() for word in (text or "").split(",") if word.strip()]
    if unknown := set(words) - set(known):
        raise SetupError(f"{', '.join(sorted(unknown))}: choose from {', '.join(dict.fromkeys(known))}")
    return words


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _stop(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def main() -> None:
    options = arguments()
    settings = Settings.load()
    environments = Environments(options.environments) if options.environments else Environments.default()
    # Treat SIGTERM like Ctrl-C: keep the figures, and leave no workers and no server behind.
    signal.signal(signal.SIGTERM, _stop)
    try:
        match options.command:
            case "setup":
                setup(settings, environments)
            case "run":
                run(settings, environments, options)
            case _:
                report(settings, options.results, options.docs)
    except (SetupError, RecordError, HoldfastError, psycopg.Error, OSError) as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit("stopped; run again with the same --out to continue")


if __name__ == "__main__":
    main()
