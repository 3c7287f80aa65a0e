-- Starts at the store's today. Days that already have a partition are left alone.
-- $1 how many days, $2 retention
SELECT holdfast.add_partitions((holdfast.now() AT TIME ZONE 'UTC')::date, $1::integer, holdfast.partition_width($2)) AS added,
       holdfast.default_is_large() AS default_is_large
