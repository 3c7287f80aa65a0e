-- The same where every end is written.
SET LOCAL lock_timeout = '1s';
ALTER TABLE holdfast.finished ADD COLUMN zone text;
