INSERT INTO invoicing.class_bill (enrolment_id, month, invoice_id) VALUES ($1, $2, $3)
