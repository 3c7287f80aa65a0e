-- The store's clock. PL/pgSQL caches the plan for reading the table. The body of an SQL function that reads a table
-- would be planned again in every statement that calls it, which takes 40 to 60 us: a tenth of enqueuing, claiming or
-- finishing a single job. Keep in sync with sql/enqueue_one.sql, which inlines this.
CREATE OR REPLACE FUNCTION holdfast.now() RETURNS timestamptz LANGUAGE plpgsql VOLATILE PARALLEL SAFE AS $$
BEGIN
    RETURN (SELECT coalesce(clock.frozen_at, clock_timestamp() + clock.moved) FROM holdfast.clock);
END
$$;
