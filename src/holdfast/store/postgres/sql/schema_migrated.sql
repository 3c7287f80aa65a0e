-- $1 version, $2 name
INSERT INTO holdfast.migration (version, name) VALUES ($1, $2)
