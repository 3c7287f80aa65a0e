SELECT id, name, email, address, created_at FROM invoicing.customer WHERE id = $1
