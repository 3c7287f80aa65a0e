-- Adds a column and an index to a table that every claim writes, and a new table. The first lock ends an autovacuum and
-- blocks nothing else. Without it the ALTER would wait for the autovacuum, and all claims would wait for the ALTER.
LOCK TABLE holdfast.lease IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE holdfast.lease ADD COLUMN zone text;
CREATE INDEX lease_zone ON holdfast.lease (zone) WHERE zone IS NOT NULL;
CREATE TABLE holdfast.zone (name text PRIMARY KEY, moved interval NOT NULL DEFAULT '0');
