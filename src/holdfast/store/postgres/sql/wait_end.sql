-- $1 holder, $2 ids
DELETE FROM holdfast.waiter WHERE job_id = ANY ($2::uuid[]) AND holder = $1
