-- Bytes of the tables that keep no history, including their indexes.
SELECT relname::text AS name, pg_total_relation_size(oid) AS bytes FROM pg_class
WHERE relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'holdfast.ready'::regclass)
  AND relname IN ('ready', 'lease', 'sleeper', 'waiter', 'schedule', 'maintenance')
ORDER BY name
