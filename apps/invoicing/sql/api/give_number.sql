-- Each transaction that issues an invoice waits here until the one before has committed, or rolled back and released
-- its number, so there are no gaps. This is the last statement of its transaction, to keep the wait short.
WITH given AS (
    INSERT INTO invoicing.number_series AS series (year, last)
    VALUES (extract(year FROM $2::date), 1)
    ON CONFLICT (year) DO UPDATE SET last = series.last + 1
    RETURNING year, last
)
UPDATE invoicing.invoice
SET status = 'ISSUED', issued_on = $2, due_on = $2::date + due_days,
    number = year || '-' || lpad(last::text, greatest(5, length(last::text)), '0')
FROM given
WHERE id = $1
RETURNING number
