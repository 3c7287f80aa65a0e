-- Sessions in this database whose transactions this role is not allowed to see.
SELECT count(*) AS sessions, current_user::text AS role
FROM pg_stat_activity WHERE datname = current_database() AND query = '<insufficient privilege>'
