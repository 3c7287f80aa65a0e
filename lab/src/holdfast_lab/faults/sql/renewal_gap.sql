-- $1 length of a lease. The longest time, in seconds, for which a lease has not been renewed.
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - until) + $1::float8), 0)::float8 FROM holdfast.lease
