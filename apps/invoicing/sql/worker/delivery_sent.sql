-- The first record sets the time: a worker that was cut off may record it again.
UPDATE invoicing.email_delivery SET status = 'SENT', error_code = NULL, sent_at = clock_timestamp()
WHERE id = $1 AND status <> 'SENT';
