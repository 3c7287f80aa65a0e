-- The longest time, in seconds, since any lease was last renewed. $1 length of a lease
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - until) + $1::float8), 0)::float8 FROM holdfast.lease
