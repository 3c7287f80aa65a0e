-- A migration of each sort that there has been: here a column, in a table that every claim reads and writes.
SET LOCAL lock_timeout = '1s';
ALTER TABLE holdfast.ready ADD COLUMN weight smallint NOT NULL DEFAULT 0;
