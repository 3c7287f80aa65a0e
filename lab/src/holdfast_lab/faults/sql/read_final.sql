-- All final jobs. `fence`: of the claim that finished the job. `result_fence`: of the attempt that wrote the result.
SELECT job.id, job.kind, finished.state::text AS state,
       CASE WHEN finished.claim IS NOT NULL THEN finished.fence END AS fence, finished.attempt, finished.losses,
       (finished.result ->> 'fence')::bigint AS result_fence,
       hashtextextended(finished.result::text, 0) AS result_hash
FROM holdfast.finished JOIN holdfast.job USING (id)
UNION ALL
SELECT id, kind, state::text, CASE WHEN claim IS NOT NULL THEN fence END, attempt, losses, NULL, NULL FROM holdfast.dead_letter
