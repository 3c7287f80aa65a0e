-- $1 names
SELECT given.name FROM unnest($1::text[]) AS given (name)
WHERE NOT EXISTS (SELECT FROM holdfast.kind WHERE kind.name = given.name)
