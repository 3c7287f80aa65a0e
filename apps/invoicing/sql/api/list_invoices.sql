-- Newest first. $3 is the last invoice of the previous page. A null parameter does not filter.
SELECT id, number, customer_id, status, currency, template, due_days, issued_on, due_on, net, tax, total, note, created_at
FROM invoicing.invoice
WHERE ($1::text IS NULL OR status = $1)
    AND ($2::uuid IS NULL OR customer_id = $2)
    AND ($3::uuid IS NULL
        OR (created_at, id) < (SELECT last.created_at, last.id FROM invoicing.invoice AS last WHERE last.id = $3))
ORDER BY created_at DESC, id DESC
LIMIT $4
