SELECT id, number, customer_id, status, currency, template, due_days, issued_on, due_on, net, tax, total, note, created_at
FROM invoicing.invoice
WHERE id = $1
