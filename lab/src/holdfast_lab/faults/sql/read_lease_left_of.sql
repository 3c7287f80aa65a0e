-- $1 a holder: seconds until the first of its leases ends.
SELECT min(extract(epoch FROM until - clock_timestamp()))::float8 FROM holdfast.lease WHERE holder = $1
