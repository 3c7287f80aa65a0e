-- Finds what keeps vacuum from removing dead rows in this database: a transaction with a snapshot or an id, a prepared
-- transaction, a replication slot, or a standby's feedback. A session that only holds a lock pins nothing. `age()`
-- counts the transactions since then. The text of queries is left out, because it may contain data.
-- $1 lasting longer than this, $2 or since more transactions than this, $3 at most
SELECT what, pid, name, role, application, state, lasting, transactions
FROM (
    SELECT CASE WHEN backend_type = 'walsender' THEN 'standby' ELSE 'transaction' END AS what, pid,
           NULL::text AS name, usename::text AS role, application_name AS application, state,
           clock_timestamp() - xact_start AS lasting,
           greatest(age(backend_xmin), age(backend_xid)) AS transactions
    FROM pg_stat_activity
    WHERE pid <> pg_backend_pid() AND coalesce(backend_xmin, backend_xid) IS NOT NULL
      AND backend_type <> 'autovacuum worker' AND (datname = current_database() OR backend_type = 'walsender')
    UNION ALL
    SELECT 'prepared transaction', NULL, gid, owner::text, NULL, NULL, clock_timestamp() - prepared, age(transaction)
    FROM pg_prepared_xacts WHERE database = current_database()
    UNION ALL
    SELECT 'replication slot', active_pid, slot_name::text, NULL, NULL, CASE WHEN active THEN 'active' ELSE 'inactive' END,
           NULL, age(xmin)
    FROM pg_replication_slots WHERE xmin IS NOT NULL
) AS pin
WHERE lasting > $1::interval OR transactions > $2
ORDER BY transactions DESC NULLS LAST, lasting DESC NULLS LAST
LIMIT $3
