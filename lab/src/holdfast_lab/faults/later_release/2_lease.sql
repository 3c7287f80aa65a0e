-- A column and an index.
SET LOCAL lock_timeout = '1s';
ALTER TABLE holdfast.lease ADD COLUMN zone text;
CREATE INDEX lease_zone ON holdfast.lease (zone) WHERE zone IS NOT NULL;
