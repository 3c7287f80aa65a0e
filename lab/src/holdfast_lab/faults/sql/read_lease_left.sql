-- Seconds until the earliest end of any lease.
SELECT min(extract(epoch FROM until - clock_timestamp()))::float8 FROM holdfast.lease
