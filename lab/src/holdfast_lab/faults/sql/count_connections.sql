-- How many connections a role has, and how many of them belong to lease keepers. $1 the workers' role
SELECT count(*), count(*) FILTER (WHERE query LIKE '%.renew(%') FROM pg_stat_activity WHERE usename = $1
