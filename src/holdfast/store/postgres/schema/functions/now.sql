-- The store's clock. PL/pgSQL keeps the plan of the look at the table; the body of an SQL function that reads a table is
-- planned again in every statement that calls it: 40 to 60 µs, a tenth of enqueuing, claiming or finishing a single job.
-- Keep in sync with sql/enqueue_one.sql, which has this written out.
CREATE OR REPLACE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
BEGIN
    RETURN (SELECT coalesce(clock.frozen_at, clock_timestamp() + clock.moved) FROM holdfast.clock);
END
$$;
