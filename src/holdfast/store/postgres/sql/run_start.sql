-- $1 name, $2 replica, $3 occurrence
INSERT INTO holdfast.run (started_at, occurrence, name, replica) VALUES (holdfast.now(), $3, $1, $2) RETURNING id
