-- The first who says so has the time: a worker that was cut off may say it once more.
UPDATE invoicing.email_delivery SET status = 'SENT', error_code = NULL, sent_at = clock_timestamp()
WHERE id = $1 AND status <> 'SENT';
