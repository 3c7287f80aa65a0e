-- $1 name, $2 replica, $3 slot
INSERT INTO holdfast.run (started_at, slot, name, replica) VALUES (holdfast.now(), $3, $1, $2) RETURNING id
