SELECT customer_id, email, class_name, student, monthly_price, currency, tax_rate, first_month, last_month
FROM invoicing.enrolment JOIN invoicing.customer ON customer.id = customer_id
WHERE enrolment.id = $1
FOR NO KEY UPDATE OF enrolment
