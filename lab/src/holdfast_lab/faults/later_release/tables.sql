-- What the later release adds at the end of tables.sql, in addition to two columns.
CREATE INDEX lease_zone ON holdfast.lease (zone) WHERE zone IS NOT NULL;
CREATE TABLE holdfast.zone (name text PRIMARY KEY, moved interval NOT NULL DEFAULT '0');
