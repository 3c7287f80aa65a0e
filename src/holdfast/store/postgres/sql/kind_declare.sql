-- An unchanged declaration is neither written nor locked, because every process declares when it starts. Rows are taken
-- in order of name, so two processes cannot deadlock.
-- $1 names, $2 versions
INSERT INTO holdfast.kind AS kept (version, declared_at, name)
SELECT given.version, holdfast.now(), given.name
FROM unnest($1::text[], $2::integer[]) AS given (name, version)
WHERE NOT EXISTS (
    SELECT FROM holdfast.kind AS same WHERE same.name = given.name AND same.version = given.version
)
ORDER BY given.name
ON CONFLICT (name) DO UPDATE SET version = excluded.version, declared_at = excluded.declared_at
