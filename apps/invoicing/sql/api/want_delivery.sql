-- Its job has been given a new life, or it has another job: what was said before does not hold any more.
-- $2 the job that it has from now on, $3 the one that it had
UPDATE invoicing.email_delivery SET status = 'PENDING', error_code = NULL, job_id = $2
WHERE id = $1 AND status = 'FAILED' AND job_id IS NOT DISTINCT FROM $3
RETURNING id, invoice_id, purpose, recipient, status, message_id, error_code, created_at, sent_at
