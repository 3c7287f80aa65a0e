INSERT INTO invoicing.enrolment
    (id, customer_id, class_name, student, monthly_price, currency, tax_rate, first_month, last_month)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
