INSERT INTO invoicing.invoice_line (invoice_id, position, description, quantity, unit_price, tax_rate, net)
SELECT $1, position, description, quantity, unit_price, tax_rate, net
FROM unnest($2::text[], $3::numeric[], $4::numeric[], $5::numeric[], $6::numeric[])
    WITH ORDINALITY AS line (description, quantity, unit_price, tax_rate, net, position)
