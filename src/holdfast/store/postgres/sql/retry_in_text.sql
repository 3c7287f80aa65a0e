-- The call with casts, so any driver can run it in the caller's own transaction. Ids come back as text.
SELECT id::text, retrying FROM holdfast.retry($1::uuid[])
