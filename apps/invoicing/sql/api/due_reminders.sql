-- The highest level that each invoice has reached, unless a reminder of that level or above exists. So a customer who
-- was not reminded for weeks, because the scheduler did not run, gets one email instead of three.
SELECT invoice.id AS invoice_id, due.level
FROM invoicing.invoice
JOIN LATERAL (
    SELECT max(level) AS level FROM unnest($2::int[], $3::int[]) AS step (level, days) WHERE due_on + days <= $1::date
) AS due ON due.level IS NOT NULL
WHERE status = 'ISSUED' AND total > 0 AND due_on < $1::date AND NOT EXISTS (
    SELECT FROM invoicing.reminder WHERE reminder.invoice_id = invoice.id AND reminder.level >= due.level
)
ORDER BY due_on, invoice.id
LIMIT $4
