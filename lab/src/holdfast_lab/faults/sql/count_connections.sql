-- $1 the workers' role: all of its connections, and those of lease keepers
SELECT count(*), count(*) FILTER (WHERE query LIKE '%.renew(%') FROM pg_stat_activity WHERE usename = $1
