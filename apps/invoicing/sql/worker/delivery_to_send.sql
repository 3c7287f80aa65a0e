SELECT delivery.status, delivery.purpose, delivery.recipient, delivery.message_id, delivery.created_at,
    coalesce(reminder.level, 0) AS reminder_level,
    -- Only reminders that were sent: the customer has not seen one that failed or still waits.
    (
        SELECT count(*) FROM invoicing.reminder AS earlier
        JOIN invoicing.email_delivery AS sent ON sent.id = earlier.delivery_id
        WHERE earlier.invoice_id = delivery.invoice_id AND earlier.level < reminder.level AND sent.status = 'SENT'
    ) AS reminders_before,
    invoice.number, invoice.status AS invoice_status, invoice.issued_on, invoice.due_on, invoice.total, invoice.currency, customer.name AS customer_name,
    -- READY only if both are.
    CASE document.state WHEN 'READY' THEN file.state ELSE document.state END AS document_state,
    document.id AS document_id, document.error_message AS document_error, document.job_id AS document_job_id, file.storage_key, file.sha256
FROM invoicing.email_delivery AS delivery
JOIN invoicing.invoice ON invoice.id = delivery.invoice_id
JOIN invoicing.customer ON customer.id = invoice.customer_id
LEFT JOIN invoicing.reminder ON reminder.delivery_id = delivery.id
LEFT JOIN platform.document ON document.kind = $2 AND document.subject_id = invoice.id
LEFT JOIN platform.file ON file.id = document.file_id
WHERE delivery.id = $1;
