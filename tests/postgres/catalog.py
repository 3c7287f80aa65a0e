"""Describe every object of a schema for comparison: everything except rows, with all daily partitions as one object."""

from collections.abc import Mapping

import asyncpg

# Each query returns an object's name and definition. `oid` stands for the schema.
_QUERIES = {
    "table": """
        SELECT relname, concat_ws(' ', relkind, relpersistence, reloptions::text, relrowsecurity, relacl::text,
                                  pg_get_partkeydef(oid), pg_get_expr(relpartbound, oid))
        FROM pg_class WHERE relnamespace = $1 AND relkind IN ('r', 'p', 'v', 'm')
    """,
    "column": """
        SELECT relname || '.' || attname,
               concat_ws(' ', attnum, format_type(atttypid, atttypmod), attnotnull, attidentity, attgenerated,
                         attstorage, attcompression, attstattarget, attoptions::text, attcollation::regcollation,
                         pg_get_expr(adbin, adrelid))
        FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid
        LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum
        WHERE relnamespace = $1 AND relkind IN ('r', 'p', 'v', 'm') AND attnum > 0 AND NOT attisdropped
    """,
    "index": """
        SELECT relname, concat_ws(' ', pg_get_indexdef(indexrelid), reloptions::text, indisvalid, indisclustered)
        FROM pg_class JOIN pg_index ON indexrelid = oid WHERE relnamespace = $1
    """,
    "constraint": """
        SELECT coalesce(conrelid::regclass::text, '') || ' ' || conname,
               concat_ws(' ', contype, convalidated, pg_get_constraintdef(oid))
        FROM pg_constraint WHERE connamespace = $1
    """,
    "function": """
        SELECT oid::regprocedure::text, concat_ws(' ', pg_get_functiondef(oid), proacl::text, procost, prorows)
        FROM pg_proc WHERE pronamespace = $1 AND prokind = 'f'
    """,
    "sequence": """
        SELECT relname, pg_sequence::text
        FROM pg_class JOIN LATERAL (
            SELECT seqtypid::regtype, seqstart, seqincrement, seqmax, seqmin, seqcache, seqcycle
            FROM pg_sequence WHERE seqrelid = pg_class.oid
        ) AS pg_sequence ON true
        WHERE relnamespace = $1
    """,
    "type": """
        SELECT typname, concat_ws(' ', typtype, (
            SELECT string_agg(enumlabel, ',' ORDER BY enumsortorder) FROM pg_enum WHERE enumtypid = pg_type.oid
        ))
        FROM pg_type WHERE typnamespace = $1 AND typtype IN ('e', 'd')
    """,
    "trigger": """
        SELECT tgrelid::regclass || ' ' || tgname, pg_get_triggerdef(pg_trigger.oid)
        FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid WHERE relnamespace = $1 AND NOT tgisinternal
    """,
    "comment": """
        SELECT pg_describe_object(classoid, objoid, objsubid), description
        FROM pg_description
        WHERE (classoid, objoid) IN (
            SELECT 'pg_class'::regclass, oid FROM pg_class WHERE relnamespace = $1
            UNION ALL SELECT 'pg_proc'::regclass, oid FROM pg_proc WHERE pronamespace = $1
        )
    """,
}
# A database has partitions only for the days on which it was used.
_DAY = r"_\d{8}(?=\W|_|$)"
_BOUNDS = r"FOR VALUES FROM \('[^']*'\) TO \('[^']*'\)"


async def catalog(connection: "asyncpg.Connection[asyncpg.Record]", schema: str = "holdfast") -> Mapping[str, set[str]]:
    """Return the definition of each object of the schema by type and name; the days of a table count as one object."""
    found: dict[str, set[str]] = {}
    oid = await connection.fetchval("SELECT oid FROM pg_namespace WHERE nspname = $1", schema)
    for sort, query in _QUERIES.items():
        of_any_day = "SELECT DISTINCT regexp_replace(name, $2, '_day', 'g'), regexp_replace(made, $3, 'bounds', 'g') "
        rows = await connection.fetch(
            f"{of_any_day} FROM ({query}) AS each (name, made)", oid, _DAY, f"{_DAY}|{_BOUNDS}"
        )
        for name, made in rows:
            found.setdefault(f"{sort} {name}", set()).add(made)
    return found
