-- The functions that a migrator has installed, and whether each is still exactly what PostgreSQL stored for its text.
WITH present AS MATERIALIZED (
    SELECT pg_proc.oid, pg_proc.proname FROM pg_proc
    WHERE pg_proc.prokind = 'f' AND pg_proc.pronamespace = (
        SELECT relnamespace FROM pg_class WHERE oid = 'holdfast.installed_function'::regclass
    )
)
SELECT installed.name, installed.digest, EXISTS (
    SELECT FROM present
    WHERE present.proname = installed.name AND md5(pg_get_functiondef(present.oid)) = installed.definition
) AS is_untouched
FROM holdfast.installed_function AS installed
