SELECT document.state, file.state AS file_state, file.storage_key, file.content_type, invoice.id AS invoice_id, invoice.number, invoice.template,
    invoice.issued_on, invoice.due_on, invoice.currency, invoice.note,
    customer.name AS customer_name, customer.address AS customer_address, customer.email AS customer_email
FROM platform.document
JOIN platform.file ON file.id = document.file_id
JOIN invoicing.invoice ON invoice.id = document.subject_id
JOIN invoicing.customer ON customer.id = invoice.customer_id
WHERE document.id = $1;
