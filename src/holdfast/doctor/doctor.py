"""Examines a PostgreSQL store. The checks are independent: one that cannot run says so, and the others continue."""

from collections.abc import AsyncIterator, Callable

from holdfast.doctor.findings import Finding, Level, Limits
from holdfast.doctor.job_checks import (
    check_all_places,
    check_clock,
    check_dead_letters,
    check_due,
    check_leases,
    check_maintenance,
    check_partitions,
    check_places,
    check_privileges,
    check_versions,
)
from holdfast.doctor.runtime_checks import check_listeners, check_runs, check_schedules
from holdfast.doctor.server_checks import (
    check_answer,
    check_dead_rows,
    check_horizon,
    check_pooler,
    check_server,
)
from holdfast.domain.errors import HoldfastError
from holdfast.logs.records import get_logger
from holdfast.store.postgres.examine import Examiner
from holdfast.store.postgres.schema_files import schema_files

log = get_logger("holdfast.doctor")

Check = Callable[[Examiner, Limits], AsyncIterator[Finding]]

_OF_THE_SERVER: dict[str, Check] = {
    "store": check_answer,
    "pooler": check_pooler,
    "server": check_server,
    "vacuum horizon": check_horizon,
}
_OF_THE_SCHEMA: dict[str, Check] = {
    "privileges": check_privileges,
    "clock": check_clock,
    "leases": check_leases,
    "due jobs": check_due,
    "versions": check_versions,
    "dead letters": check_dead_letters,
    "schedules": check_schedules,
    "runs": check_runs,
    "listeners": check_listeners,
    "partitions": check_partitions,
    "maintenance": check_maintenance,
    "dead rows": check_dead_rows,
}


async def examine(
    url: str,
    schema: str = "holdfast",
    *,
    deep: bool = False,
    limits: Limits | None = None,
    direct_url: str | None = None,
) -> list[Finding]:
    """Return all findings about the store, in a fixed order. Raise StoreUnavailable if it cannot be reached at all.

    Changes nothing. Skips the checks of the tables if the schema is not the one that this release knows. `direct_url`
    is the server's address that bypasses a pooler.
    """
    limits = limits or Limits()
    async with Examiner(url, schema, direct_url) as examiner:
        findings = await _found(_OF_THE_SERVER, examiner, limits)
        schema_finding = await _schema(examiner, schema)
        findings.append(schema_finding)
        if schema_finding.level is Level.OK:
            places = check_all_places if deep else check_places
            findings += await _found({**_OF_THE_SCHEMA, "places": places}, examiner, limits)
        return findings


async def _schema(examiner: Examiner, schema: str) -> Finding:
    newest = schema_files().version
    try:
        version = await examiner.schema_version()
        changed = await examiner.changed_functions() if version == newest else []
    except HoldfastError as error:
        return Finding("schema", Level.UNKNOWN, f"could not check: {error}")
    if changed:
        line = f'functions in "{schema}" differ from this release: {", ".join(changed)}'
        return Finding("schema", Level.PROBLEM, line, "run `holdfast migrate`; its tables were not checked")
    if version == newest:
        return Finding("schema", Level.OK, f'"{schema}" is at version {version}')
    if version > newest:
        line = f'"{schema}" is at version {version}, newer than this release knows ({newest})'
        return Finding("schema", Level.PROBLEM, line, "upgrade Holdfast here; its tables were not checked")
    state = "is missing" if version == 0 else f"is at version {version}, this release needs {newest}"
    return Finding(
        "schema", Level.PROBLEM, f'"{schema}" {state}', "run `holdfast migrate`; its tables were not checked"
    )


async def _found(checks: dict[str, Check], examiner: Examiner, limits: Limits) -> list[Finding]:
    findings: list[Finding] = []
    for name, check in checks.items():
        try:
            async for finding in check(examiner, limits):
                findings.append(finding)  # noqa: PERF401 - keeps what it found before it failed
        except HoldfastError as error:
            findings.append(Finding(name, Level.UNKNOWN, f"could not check: {error}"))
        except Exception as error:
            # An unexpected server version or privilege must not hide what the other checks find.
            log.debug("check failed", check=name, exc_info=True)
            findings.append(Finding(name, Level.UNKNOWN, f"could not check: {type(error).__name__}: {error}"))
    return findings
