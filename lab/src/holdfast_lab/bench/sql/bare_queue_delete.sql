-- $1 places of rows that this transaction holds locked, so that they cannot have moved
DELETE FROM holdfast.bare_queue WHERE ctid = ANY ($1::tid[])
