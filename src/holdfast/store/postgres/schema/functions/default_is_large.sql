-- Attaching a partition scans the default one behind a lock that stops everything, so a large one must not get neighbors.
CREATE OR REPLACE FUNCTION holdfast.default_is_large() RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT greatest(pg_relation_size('holdfast.job_other'), pg_relation_size('holdfast.finished_other')) > 268435456
$$;
