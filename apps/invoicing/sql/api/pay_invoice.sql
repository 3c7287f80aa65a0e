UPDATE invoicing.invoice SET status = 'PAID' WHERE id = $1
