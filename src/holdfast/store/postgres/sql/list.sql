-- Takes the newest ids of each table by its own index, then the newest of those.
-- $1 state or null, $2 queue or null, $3 kind or null, $4 tenant or null, $5 at most
WITH newest AS (
    (SELECT ready.id FROM holdfast.ready
     WHERE coalesce($1, 'ready') = 'ready' AND ready.queue = coalesce($2, ready.queue)
       AND ready.kind = coalesce($3, ready.kind)
       AND ($4::text IS NULL OR EXISTS (SELECT FROM holdfast.job WHERE job.id = ready.id AND job.tenant = $4))
     ORDER BY ready.id DESC LIMIT $5)
    UNION ALL
    (SELECT lease.id FROM holdfast.lease
     WHERE coalesce($1, 'running') = 'running' AND lease.queue = coalesce($2, lease.queue)
       AND lease.kind = coalesce($3, lease.kind)
       AND ($4::text IS NULL OR EXISTS (SELECT FROM holdfast.job WHERE job.id = lease.id AND job.tenant = $4))
     ORDER BY lease.id DESC LIMIT $5)
    UNION ALL
    (SELECT finished.id FROM holdfast.finished
     WHERE finished.state::text = coalesce($1, finished.state::text)
       AND (coalesce($2, $3, $4) IS NULL
            OR EXISTS (SELECT FROM holdfast.job
                       WHERE job.id = finished.id AND job.queue = coalesce($2, job.queue)
                         AND job.kind = coalesce($3, job.kind) AND job.tenant = coalesce($4, job.tenant)))
     ORDER BY finished.id DESC LIMIT $5)
    UNION ALL
    (SELECT dead_letter.id FROM holdfast.dead_letter
     WHERE dead_letter.state::text = coalesce($1, dead_letter.state::text)
       AND dead_letter.queue = coalesce($2, dead_letter.queue) AND dead_letter.kind = coalesce($3, dead_letter.kind)
       AND dead_letter.tenant = coalesce($4, dead_letter.tenant)
     ORDER BY dead_letter.id DESC LIMIT $5)
)
SELECT id FROM newest ORDER BY id DESC LIMIT $5
