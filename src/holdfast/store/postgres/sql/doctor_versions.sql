-- Jobs with a newer version than the worker that last declared their kind. Only the newest jobs are read, because newer
-- versions are found there.
-- $1 how many to look at, $2 at most, $3 the name of the header
SELECT waiting.kind, waiting.version, kind.version AS declared, count(*) AS jobs
FROM (
    SELECT newest.kind, CASE WHEN job.headers ->> $3::text ~ '^[0-9]{1,7}$' THEN (job.headers ->> $3::text)::integer END AS version
    FROM (SELECT id, kind FROM holdfast.ready ORDER BY id DESC LIMIT $1) AS newest
    CROSS JOIN LATERAL (SELECT headers FROM holdfast.job WHERE job.id = newest.id AND headers IS NOT NULL LIMIT 1) AS job
) AS waiting
JOIN holdfast.kind ON kind.name = waiting.kind
WHERE waiting.version > kind.version
GROUP BY waiting.kind, waiting.version, kind.version
ORDER BY jobs DESC, waiting.kind
LIMIT $2
