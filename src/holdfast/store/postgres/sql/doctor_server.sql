-- What any role may know about the server. Connections come from the database statistics: most roles cannot see whose
-- connections they are, but can see how many there are.
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::integer AS version_number,
       current_setting('server_encoding') AS encoding,
       pg_is_in_recovery() AS is_standby,
       ARRAY(SELECT name FROM pg_settings
             WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit') AND setting = 'off'
             ORDER BY name)::text[] AS unsafe,
       current_setting('autovacuum')::boolean AS autovacuum,
       (SELECT sum(numbackends)::integer FROM pg_stat_database) AS connections,
       current_setting('max_connections')::integer
           - current_setting('superuser_reserved_connections')::integer
           - coalesce(current_setting('reserved_connections', true), '0')::integer AS most_connections,
       pg_notification_queue_usage() AS notify_share
