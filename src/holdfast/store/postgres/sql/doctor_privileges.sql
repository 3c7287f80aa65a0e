-- The privileges that a worker needs and this role lacks, and those that the owner lacks to add partitions for it.
WITH space AS (SELECT oid FROM pg_namespace WHERE oid = (
    SELECT relnamespace FROM pg_class WHERE oid = 'holdfast.migration'::regclass
)),
needed AS (
    SELECT pg_class.relname AS name, privilege.name AS privilege, pg_class.oid
    FROM pg_class JOIN space ON space.oid = pg_class.relnamespace
    CROSS JOIN (VALUES ('SELECT'), ('INSERT'), ('UPDATE'), ('DELETE')) AS privilege (name)
    WHERE pg_class.relkind IN ('r', 'p') AND NOT pg_class.relispartition
      AND (privilege.name = 'SELECT' OR pg_class.relname NOT IN ('clock', 'migration', 'installed_function'))
)
SELECT current_user::text AS role,
       ARRAY(
           SELECT privilege || ' on ' || name FROM needed WHERE NOT has_table_privilege(oid, privilege)
           UNION ALL
           SELECT 'EXECUTE on ' || proname FROM pg_proc JOIN space ON space.oid = pronamespace
           WHERE NOT has_function_privilege(pg_proc.oid, 'EXECUTE')
       ) AS missing,
       definer.rolname::text AS definer,
       pg_has_role(definer.oid, job.relowner, 'USAGE') AS owns_tables,
       has_schema_privilege(definer.oid, space.oid, 'CREATE') AS may_create
FROM space
JOIN pg_class AS job ON job.oid = 'holdfast.job'::regclass
JOIN pg_proc ON pg_proc.pronamespace = space.oid AND pg_proc.proname = 'add_partitions'
JOIN pg_roles AS definer ON definer.oid = pg_proc.proowner
