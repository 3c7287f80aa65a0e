-- Whether this role owns the tables, directly or as a member of the owning role. No row: the role does not exist.
-- $1 name
SELECT pg_has_role(pg_roles.oid, job.relowner, 'USAGE') AS owns
FROM pg_roles JOIN pg_class AS job ON job.oid = 'holdfast.job'::regclass WHERE pg_roles.rolname = $1
