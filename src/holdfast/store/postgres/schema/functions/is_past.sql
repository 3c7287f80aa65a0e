-- Whether a partition can be dropped, because all of it is older than the retention.
CREATE OR REPLACE FUNCTION holdfast.is_past(day date, retention interval) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT coalesce(holdfast.part_end(day)::timestamp AT TIME ZONE 'UTC' <= holdfast.now() - retention, false)
$$;
