-- Every job that is final. `result_fence`: which attempt said it was the one that did it.
SELECT job.id, job.kind, finished.state::text AS state, finished.fence, finished.attempt, finished.losses,
       (finished.result ->> 'fence')::bigint AS result_fence,
       hashtextextended(finished.result::text, 0) AS result_hash
FROM holdfast.finished JOIN holdfast.job USING (id)
UNION ALL
SELECT id, kind, state::text, fence, attempt, losses, NULL, NULL FROM holdfast.dead_letter
