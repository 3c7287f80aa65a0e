-- Whether this role owns the tables, also as a member of the role that does. No row: there is no such role.
-- $1 name
SELECT pg_has_role(pg_roles.oid, job.relowner, 'USAGE') AS owns
FROM pg_roles JOIN pg_class AS job ON job.oid = 'holdfast.job'::regclass WHERE pg_roles.rolname = $1
