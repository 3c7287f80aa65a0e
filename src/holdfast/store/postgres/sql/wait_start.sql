-- Registers which holder waits for which jobs, in real time. An existing registration can only be extended.
-- $1 holder; per job: $2 ids, $3 for how long
INSERT INTO holdfast.waiter AS old (job_id, holder, until)
SELECT given.id, $1::uuid, clock_timestamp() + given.lasting
FROM unnest($2::uuid[], $3::interval[]) AS given (id, lasting)
ON CONFLICT (job_id, holder) DO UPDATE SET until = greatest(old.until, excluded.until)
