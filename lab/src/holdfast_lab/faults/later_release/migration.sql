-- A column and an index of a table that every claim writes, and a column of a partitioned one. The locks are taken in the
-- order in which a claim takes them, so that the two cannot deadlock.
ALTER TABLE holdfast.lease ADD COLUMN zone text;
CREATE INDEX lease_zone ON holdfast.lease (zone) WHERE zone IS NOT NULL;
ALTER TABLE holdfast.job ADD COLUMN weight smallint;
CREATE TABLE holdfast.zone (name text PRIMARY KEY, moved interval NOT NULL DEFAULT '0');
