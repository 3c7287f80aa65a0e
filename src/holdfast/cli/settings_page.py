"""The reference page docs/settings.md, made from the class Settings so that it cannot say anything else."""

from datetime import timedelta

from holdfast.cli.settings import in_words
from holdfast.settings import GROUPS, OTHER_VARIABLES, Settings, variable

_START = """\
# Settings

Made by `holdfast settings --markdown`: change `src/holdfast/settings.py`, not this page. `holdfast settings` shows the
values in force where no code gives others, and where each comes from.

Settings are environment variables. Code gives the same ones by the name in small letters without the prefix,
`Holdfast(lease="60s", runners=("queue", "sweep"))`: what it gives goes before the variable, and None leaves it to the
variable. A command's options go before both. Durations are written like `500ms`, `90s`, `1h30m` or `7d`, lists are
separated by commas, yes and no are `true` and `false`. An empty variable counts as unset. What is misspelt, out of
range or contradictory is refused at start, in one line that names the variable or the keyword.

The address of the store belongs into `HOLDFAST_STORE`, where every process and every command finds it. An address in
the code, `Holdfast("postgresql://…")`, goes before the variable, but only for those who load that code: `holdfast
migrate`, `jobs`, `schedules`, `runs`, `subscriptions` and `doctor` do not, and would look into another store. An option
`--store` goes before both. `migrate`, `declare` and a list that is empty say which store they used.

Variables that begin with `HOLDFAST_TEST_` or `HOLDFAST_BENCH_` belong to the tests and are ignored, and so are those
that Kubernetes sets for a Service whose name begins with `holdfast`. A Service called `holdfast-health` would set
`HOLDFAST_HEALTH_PORT`: give it another name, or set `enableServiceLinks: false` in the pod.
"""

_COMING_FROM = """
## If you come from a worker with these knobs

Milliseconds become durations: `60000` is `60s` here.

| there | here | what differs |
|---|---|---|
"""

# A variable of the other worker, ours, and what to know about the difference.
_KNOBS = (
    ("WORKER_TICK_RUNNERS", "runners", "unset runs everything that the app declares"),
    ("WORKER_TICK_OVERALL_MAX_MS", "tick_max", "the same default"),
    ("WORKER_TICK_RUNNER_MAX_MS", "runner_max", "the same: 60s"),
    ("WORKER_TICK_RUNNER_MAX_ITEMS", "runner_items", "no limit unless set; 200 there"),
    ("WORKER_TICK_SHARD_INDEX", "shard_index", "only together with the count"),
    ("WORKER_TICK_SHARD_COUNT", "shard_count", "only together with the index"),
    ("OUTBOX_BATCH_SIZE", "claim_max", "no limit unless set, but never more than there are slots and look-ahead for"),
    ("WORKER_BUSY_LOOP_DELAY_MS", "busy_delay", "none unless set; 250ms there"),
    ("WORKER_IDLE_BACKOFF_MIN_MS", "idle_backoff_min", "1s there"),
    (
        "WORKER_IDLE_BACKOFF_MAX_MS",
        "poll",
        "30s there; set `HOLDFAST_IDLE_BACKOFF_MAX` to the same; a wake-up ends the wait early",
    ),
    ("WORKER_IDLE_BACKOFF_JITTER_MS", "idle_backoff_jitter", "none unless set; 500ms there"),
    (
        "WORKER_TICK_LOOP_ERROR_BACKOFF_MS",
        "error_backoff_max",
        "reached by doubling from the minimum; set both to 30s for a fixed wait",
    ),
    ("WORKER_TICK_LOOP_MAX_JITTER_MS", "error_backoff_jitter", "2s there"),
    ("WORKER_SHUTDOWN_TIMEOUT_MS", "shutdown", "the same default"),
)


def page() -> str:
    parts = [_START]
    for name in Settings.model_fields:
        if name in GROUPS:
            parts.append(f"\n## {GROUPS[name]}\n\n| variable | default | meaning |\n|---|---|---|\n")
        parts.append(f"| `{variable(name)}` | {_default(name)} | {Settings.model_fields[name].description} |\n")
        if name == "store":
            parts += [f"| `{other}` | unset | {meaning} |\n" for other, meaning in OTHER_VARIABLES.items()]
    parts.append(_COMING_FROM)
    parts += [f"| `{there}` | `{variable(here)}` | {differs} |\n" for there, here, differs in _KNOBS]
    return "".join(parts)


def _default(name: str) -> str:
    """Of a class whose defaults depend on other settings: those that hold when nothing is set."""
    field = Settings.model_fields[name]
    value = field.default
    if field.default_factory is not None:
        value = field.get_default(call_default_factory=True, validated_data=_PLAIN_DEFAULTS)
    words = in_words(value)
    return words if words in ("unset", "empty") else f"`{words}`"


_PLAIN_DEFAULTS: dict[str, timedelta] = {
    name: field.default for name, field in Settings.model_fields.items() if field.default_factory is None
}
