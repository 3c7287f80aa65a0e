INSERT INTO invoicing.invoice (id, customer_id, currency, template, due_days, note, net, tax, total)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
