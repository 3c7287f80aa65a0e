-- By kind, most first. Counted up to a bound, because an exact number is of no use when there are very many.
-- $1 bound
SELECT kind, count(*) AS jobs, max(finished_at) AS newest, holdfast.now() AS now
FROM (SELECT kind, finished_at FROM holdfast.dead_letter LIMIT $1) AS bounded
GROUP BY kind
ORDER BY jobs DESC, kind
