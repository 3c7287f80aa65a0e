-- Whether both default partitions have a validated guard.
CREATE OR REPLACE FUNCTION holdfast.is_guarded() RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT count(*) = 2 FROM pg_constraint
    WHERE conrelid IN ('holdfast.job_other'::regclass, 'holdfast.finished_other'::regclass) AND conname = 'guard' AND convalidated
$$;
