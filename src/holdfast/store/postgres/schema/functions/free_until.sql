-- How far a partition that begins on this day may reach: at most to `upto`, to the next partition, and to the first day
-- with ids in the default partition. Returns the day itself if the default partition already has ids of that day.
CREATE OR REPLACE FUNCTION holdfast.free_until(day date, upto date) RETURNS date
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET enable_bitmapscan = off AS $$
DECLARE
    first uuid := holdfast.first_id(day::timestamp AT TIME ZONE 'UTC');
    last uuid := holdfast.first_id(upto::timestamp AT TIME ZONE 'UTC');
BEGIN
    RETURN least(
        upto,
        (SELECT min(part.day) FROM holdfast.partition_days() AS part WHERE part.day > free_until.day),
        (SELECT holdfast.day_of(id) FROM holdfast.job_other WHERE id >= first AND id < last ORDER BY id LIMIT 1),
        (SELECT holdfast.day_of(id) FROM holdfast.finished_other WHERE id >= first AND id < last ORDER BY id LIMIT 1));
END
$$;
