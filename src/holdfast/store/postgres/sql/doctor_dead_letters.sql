-- By kind, most first; counted up to a bound, because nobody needs the exact number of very many.
-- $1 bound
SELECT kind, count(*) AS jobs, max(finished_at) AS newest, holdfast.now() AS now
FROM (SELECT kind, finished_at FROM holdfast.dead_letter LIMIT $1) AS bounded
GROUP BY kind
ORDER BY jobs DESC, kind
