-- When each succeeded job was enqueued and when it was done, in seconds since 1970.
SELECT job.id, extract(epoch FROM job.created_at)::float8 AS enqueued, extract(epoch FROM finished.finished_at)::float8 AS done
FROM holdfast.finished JOIN holdfast.job USING (id)
