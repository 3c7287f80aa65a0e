-- Uses sizes as stored, so values in TOAST are not read.
CREATE OR REPLACE FUNCTION holdfast.is_too_much(day date, ids uuid[], at_most integer, most_bytes bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off AS $$
DECLARE
    jobs bigint;
    results bigint;
BEGIN
    IF cardinality(ids) > at_most THEN
        RETURN true;
    END IF;
    EXECUTE format('SELECT sum(pg_column_size(payload) + coalesce(pg_column_size(headers), 0)) FROM holdfast.%I WHERE id = ANY ($1)',
                   'job_' || to_char(day, 'YYYYMMDD')) INTO jobs USING ids;
    EXECUTE format('SELECT sum(pg_column_size(result)) FROM holdfast.%I WHERE id = ANY ($1)',
                   'finished_' || to_char(day, 'YYYYMMDD')) INTO results USING ids;
    RETURN coalesce(jobs, 0) + coalesce(results, 0) > most_bytes;
END
$$;
