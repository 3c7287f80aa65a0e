-- $1 ctids of rows that this transaction has locked, so they cannot have moved
DELETE FROM holdfast.bare_queue WHERE ctid = ANY ($1::tid[])
