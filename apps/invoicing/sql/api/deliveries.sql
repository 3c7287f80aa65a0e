SELECT id, invoice_id, purpose, recipient, status, message_id, error_code, created_at, sent_at, job_id
FROM invoicing.email_delivery
WHERE invoice_id = $1
ORDER BY created_at, id
