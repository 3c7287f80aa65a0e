SELECT id, invoice_id, purpose, recipient, status, message_id, error_code, created_at, sent_at, job_id
FROM invoicing.email_delivery
WHERE idempotency_key = $1
FOR NO KEY UPDATE
