-- What a fresh schema begins with.
INSERT INTO holdfast.clock DEFAULT VALUES;
SELECT holdfast.add_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date, 8);
