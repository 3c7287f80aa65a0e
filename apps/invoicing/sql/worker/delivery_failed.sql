-- Only its current job may record this: a worker that was cut off may try to do so late.
UPDATE invoicing.email_delivery SET status = 'FAILED', error_code = $3 WHERE id = $1 AND job_id = $2 AND status <> 'SENT';
