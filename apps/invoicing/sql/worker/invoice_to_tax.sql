SELECT currency FROM invoicing.invoice WHERE id = $1 AND status <> 'DRAFT';
