INSERT INTO invoicing.customer (id, name, email, address) VALUES ($1, $2, $3, $4)
RETURNING id, name, email, address, created_at
