-- Returns no row if the key already has a delivery.
INSERT INTO invoicing.email_delivery (id, invoice_id, purpose, idempotency_key, recipient, message_id, job_id)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (idempotency_key) DO NOTHING
RETURNING id, invoice_id, purpose, recipient, status, message_id, error_code, created_at, sent_at
