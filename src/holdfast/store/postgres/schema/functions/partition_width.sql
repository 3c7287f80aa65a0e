-- How many days a new partition gets: an eighth of the retention, so that they stay few, because a claim locks all of them.
-- More if many could not be dropped: half of those beyond sixteen, which is as many as a pause of maintenance leaves behind.
CREATE OR REPLACE FUNCTION holdfast.partition_width(retention interval) RETURNS integer LANGUAGE sql VOLATILE AS $$
    SELECT least(366, greatest(1, floor(extract(epoch FROM retention) / 86400 / 8), (count(*) - 16) / 2))::integer
    FROM holdfast.partition_days() AS part WHERE holdfast.is_overdue(part.day, retention)
$$;
