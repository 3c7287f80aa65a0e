-- The shard of a job, the same in every language and release: the first 32 bits of the MD5 of its id's text, modulo the
-- number of shards. Ids from other sources may be random in any part or in none, so no part is used directly.
CREATE OR REPLACE FUNCTION holdfast.shard_of(id uuid, shards integer) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT (('x' || left(md5(id::text), 8))::bit(32)::bigint % shards)::integer
$$;
