-- Its job was retried, or it has a new job, so the earlier failure no longer counts.
-- $2: its job from now on; $3: its previous job.
UPDATE invoicing.email_delivery SET status = 'PENDING', error_code = NULL, job_id = $2
WHERE id = $1 AND status = 'FAILED' AND job_id IS NOT DISTINCT FROM $3
RETURNING id, invoice_id, purpose, recipient, status, message_id, error_code, created_at, sent_at
