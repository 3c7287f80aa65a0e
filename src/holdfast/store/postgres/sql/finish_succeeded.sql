-- finish.sql for jobs that succeeded without a result.
-- Per job: $1 ids, $2 fences, $3 holders
SELECT id, fence FROM holdfast.finish_succeeded($1, $2, $3)
