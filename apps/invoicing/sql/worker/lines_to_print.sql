SELECT description, quantity, unit_price, tax_rate FROM invoicing.invoice_line WHERE invoice_id = $1 ORDER BY position;
