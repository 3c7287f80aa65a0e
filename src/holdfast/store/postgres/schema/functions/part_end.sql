-- The day after the last one of the partition that begins on this day, by its bounds. Null: none begins then.
CREATE OR REPLACE FUNCTION holdfast.part_end(day date) RETURNS date LANGUAGE sql STABLE AS $$
    SELECT holdfast.day_of((regexp_match(pg_get_expr(part.relpartbound, part.oid), 'TO \(''(.*)''\)'))[1]::uuid)
    FROM pg_class AS part WHERE part.oid = to_regclass(format('holdfast.%I', 'job_' || to_char(day, 'YYYYMMDD')))
$$;
