-- $1 queues, $2 holder
DELETE FROM holdfast.sleeper WHERE queue = ANY ($1::text[]) AND holder = $2
