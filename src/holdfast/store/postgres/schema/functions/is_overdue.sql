-- Whether a partition that begins on this day should have been dropped a day ago. By then all of it was past, however
-- wide it is. If it is still here, something is in the way, or it was made for a longer retention.
CREATE OR REPLACE FUNCTION holdfast.is_overdue(day date, retention interval) RETURNS boolean LANGUAGE sql VOLATILE AS $$
    SELECT day::timestamp AT TIME ZONE 'UTC'
           < holdfast.now() - retention - greatest(retention / 8, interval '1 day') - interval '1 day'
$$;
