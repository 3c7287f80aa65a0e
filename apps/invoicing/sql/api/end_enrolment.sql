UPDATE invoicing.enrolment SET last_month = $2 WHERE id = $1
