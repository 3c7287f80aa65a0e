-- Adds a column to a partitioned table.
LOCK TABLE holdfast.job IN SHARE UPDATE EXCLUSIVE MODE;
ALTER TABLE holdfast.job ADD COLUMN weight smallint;
