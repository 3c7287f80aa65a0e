SELECT invoice.id, status, email, due_on
FROM invoicing.invoice JOIN invoicing.customer ON customer.id = customer_id
WHERE invoice.id = $1
FOR NO KEY UPDATE OF invoice
