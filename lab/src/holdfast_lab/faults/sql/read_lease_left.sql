-- Seconds until the first of all leases ends.
SELECT min(extract(epoch FROM until - clock_timestamp()))::float8 FROM holdfast.lease
