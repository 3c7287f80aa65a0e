-- Returns the payloads and headers that a claim left out because they are large: those of the first jobs until they
-- total `most_bytes`, but at least one.
CREATE OR REPLACE FUNCTION holdfast.contents(ids uuid[], most_bytes bigint) RETURNS TABLE (payload text, headers text)
LANGUAGE plpgsql STABLE
SET enable_seqscan = off SET enable_bitmapscan = off SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
DECLARE
    total bigint := 0;
    wanted uuid;
BEGIN
    FOREACH wanted IN ARRAY ids LOOP
        SELECT job.payload::text, job.headers::text INTO payload, headers FROM holdfast.job WHERE job.id = wanted;
        RETURN NEXT;
        total := total + coalesce(octet_length(payload), 0) + coalesce(octet_length(headers), 0);
        EXIT WHEN total >= most_bytes;
    END LOOP;
END
$$;
