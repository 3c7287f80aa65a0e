-- Records a newly installed function. Returns how many functions have its name: more than one means an overload.
-- $1 name, $2 digest of its text
WITH made AS MATERIALIZED (
    SELECT pg_proc.oid FROM pg_proc
    WHERE pg_proc.prokind = 'f' AND pg_proc.proname = $1::text AND pg_proc.pronamespace = (
        SELECT relnamespace FROM pg_class WHERE oid = 'holdfast.installed_function'::regclass
    )
),
noted AS (
    INSERT INTO holdfast.installed_function (name, digest, definition)
    SELECT $1::text, $2, md5(pg_get_functiondef(made.oid)) FROM made LIMIT 1
    ON CONFLICT (name) DO UPDATE SET digest = excluded.digest, definition = excluded.definition
)
SELECT count(*) AS functions FROM made
