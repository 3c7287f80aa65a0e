-- The days that have partitions.
CREATE OR REPLACE FUNCTION holdfast.partition_days() RETURNS SETOF date LANGUAGE sql STABLE AS $$
    SELECT to_date(substr(part.relname, 5), 'YYYYMMDD')
    FROM pg_inherits JOIN pg_class AS part ON part.oid = pg_inherits.inhrelid
    WHERE pg_inherits.inhparent = 'holdfast.job'::regclass AND part.relname ~ '^job_[0-9]{8}$'
    ORDER BY 1
$$;
