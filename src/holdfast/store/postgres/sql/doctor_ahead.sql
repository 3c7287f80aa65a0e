-- Of the newest ready jobs, those enqueued while the clock was ahead. They wait until it reaches that time again.
-- $1 how far ahead, $2 how many to look at
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now),
newest AS MATERIALIZED (SELECT ready.id FROM holdfast.ready ORDER BY ready.id DESC LIMIT $2)
SELECT count(*) AS jobs, max(job.created_at - moment.now) AS furthest
FROM moment CROSS JOIN newest
CROSS JOIN LATERAL (SELECT created_at FROM holdfast.job WHERE job.id = newest.id LIMIT 1) AS job
WHERE job.created_at > moment.now + $1::interval
