-- A job must be in exactly one of ready, lease, finished and dead_letter, and every job except a dead letter must have
-- a row in job. All tables are read in one snapshot, so a job that moves is seen in one place.
-- $1 how many of the newest of each table, null for all
WITH seen AS MATERIALIZED (
    (SELECT id FROM holdfast.job ORDER BY id DESC LIMIT $1)
    UNION (SELECT id FROM holdfast.ready ORDER BY id DESC LIMIT $1)
    UNION (SELECT id FROM holdfast.lease ORDER BY id DESC LIMIT $1)
    UNION (SELECT id FROM holdfast.finished ORDER BY id DESC LIMIT $1)
    UNION (SELECT id FROM holdfast.dead_letter ORDER BY id DESC LIMIT $1)
),
placed AS (
    SELECT seen.id, job.id IS NOT NULL AS has_job, dead_letter.id IS NOT NULL AS is_dead,
           num_nonnulls(ready.id, lease.id, finished.id, dead_letter.id) AS places
    FROM seen
    LEFT JOIN holdfast.job ON job.id = seen.id
    LEFT JOIN holdfast.ready ON ready.id = seen.id
    LEFT JOIN holdfast.lease ON lease.id = seen.id
    LEFT JOIN holdfast.finished ON finished.id = seen.id
    LEFT JOIN holdfast.dead_letter ON dead_letter.id = seen.id
)
SELECT count(*) AS seen, count(*) FILTER (WHERE places = 0) AS nowhere, count(*) FILTER (WHERE places > 1) AS twice,
       count(*) FILTER (WHERE places > 0 AND NOT has_job AND NOT is_dead) AS without_job,
       (array_agg(id ORDER BY id) FILTER (WHERE places <> 1 OR NOT has_job AND NOT is_dead))[1:3] AS examples
FROM placed
