-- Only by the job that it has: a worker that was cut off may say so late.
UPDATE invoicing.email_delivery SET status = 'FAILED', error_code = $3 WHERE id = $1 AND job_id = $2 AND status <> 'SENT';
