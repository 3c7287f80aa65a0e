-- Only while no other process has recorded its outcome.
UPDATE invoicing.email_delivery SET status = 'FAILED', error_code = $3
WHERE id = $1 AND job_id = $2 AND status = 'PENDING'
RETURNING id, invoice_id, purpose, recipient, status, message_id, error_code, created_at, sent_at
