-- A column of a partitioned table. Each of these migrations locks one table that is in use: whoever has a second one may be
-- waiting for the first.
SET LOCAL lock_timeout = '1s';
ALTER TABLE holdfast.job ADD COLUMN weight smallint;
