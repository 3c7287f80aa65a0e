SELECT id, customer_id, class_name, student, monthly_price, currency, tax_rate, first_month, last_month,
    (SELECT max(month) FROM invoicing.class_bill WHERE enrolment_id = enrolment.id) AS billed_up_to
FROM invoicing.enrolment
WHERE id = $1
