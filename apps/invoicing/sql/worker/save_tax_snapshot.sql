-- Upserts by the natural key; `taken_at` keeps its first value.
INSERT INTO invoicing.tax_snapshot (invoice_id, tax_rate, currency, net, tax)
SELECT $1, each.tax_rate, $2, each.net, each.tax
FROM unnest($3::numeric [], $4::numeric [], $5::numeric []) AS each (tax_rate, net, tax)
ON CONFLICT (invoice_id, tax_rate) DO UPDATE
SET currency = excluded.currency, net = excluded.net, tax = excluded.tax;
