-- How many days a new partition gets: an eighth of the retention. This keeps partitions few, because a claim locks all
-- of them. If many could not be dropped, it gets at least half of those beyond sixteen, which is how many a pause of
-- maintenance leaves behind.
CREATE OR REPLACE FUNCTION holdfast.partition_width(retention interval) RETURNS integer LANGUAGE sql VOLATILE AS $$
    SELECT least(366, greatest(1, floor(extract(epoch FROM retention) / 86400 / 8), (count(*) - 16) / 2))::integer
    FROM holdfast.partition_days() AS part WHERE holdfast.is_overdue(part.day, retention)
$$;
