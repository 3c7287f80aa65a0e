INSERT INTO invoicing.reminder (invoice_id, level, delivery_id) VALUES ($1, $2, $3)
