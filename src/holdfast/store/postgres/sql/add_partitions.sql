-- From the store's today on; days that exist are left alone.
-- $1 how many days
SELECT holdfast.add_partitions((holdfast.now() AT TIME ZONE 'UTC')::date, $1::integer) AS added,
       holdfast.default_is_large() AS default_is_large
