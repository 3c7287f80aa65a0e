UPDATE invoicing.email_delivery SET status = 'PENDING', error_code = NULL WHERE id = $1 AND job_id = $2 AND status = 'FAILED';
