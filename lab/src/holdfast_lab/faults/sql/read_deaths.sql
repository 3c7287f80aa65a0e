-- Every job of these kinds, each with the job whose death made it.
SELECT id, kind, (payload ->> 'id')::uuid AS dead FROM holdfast.job WHERE kind = ANY ($1::text[])
