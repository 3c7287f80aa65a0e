-- Why a change that named a fence was not done: another transaction holds the lease, this fence has finished the job
-- before, or the lease is lost. Runs after the change, in a snapshot of its own, so that a commit in between is seen.
-- $1 ids, $2 fences, $3 holders
SELECT number, fenced FROM holdfast.why_not_held($1, $2, $3)
