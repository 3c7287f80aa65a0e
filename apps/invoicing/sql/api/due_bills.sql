-- Every month after the last one billed, up to this one: an enrollment's bills are made in the order of its months.
SELECT enrolment.id AS enrolment_id, owed::date AS month
FROM invoicing.enrolment
CROSS JOIN LATERAL (
    SELECT max(month) AS last FROM invoicing.class_bill WHERE enrolment_id = enrolment.id
) AS billed
CROSS JOIN LATERAL generate_series(
    coalesce(billed.last + interval '1 month', first_month::timestamp),
    least(last_month, $1::date)::timestamp,
    interval '1 month'
) AS owed
ORDER BY owed, enrolment.id
LIMIT $2
