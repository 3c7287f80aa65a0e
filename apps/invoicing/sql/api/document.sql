SELECT invoice.id AS invoice_id, invoice.status, invoice.number,
    document.id AS document_id, document.state AS document_state, document.job_id, document.error_message,
    file.id AS file_id, file.state AS file_state, file.content_type, file.bytes, file.sha256
FROM invoicing.invoice
LEFT JOIN platform.document ON document.kind = $2 AND document.subject_id = invoice.id
LEFT JOIN platform.file ON file.id = document.file_id
WHERE invoice.id = $1
