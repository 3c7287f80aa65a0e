-- From today on; days that exist are left alone.
-- $1 how many days
SELECT holdfast.add_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date, $1::integer)
