-- Attaching a partition scans the default partition under a lock that blocks everything. A large one needs a guard
-- first.
CREATE OR REPLACE FUNCTION holdfast.default_is_large() RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT greatest(pg_relation_size('holdfast.job_other'), pg_relation_size('holdfast.finished_other')) > 268435456
$$;
