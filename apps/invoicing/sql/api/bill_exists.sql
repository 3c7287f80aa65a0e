SELECT EXISTS (SELECT FROM invoicing.class_bill WHERE enrolment_id = $1 AND month = $2)
