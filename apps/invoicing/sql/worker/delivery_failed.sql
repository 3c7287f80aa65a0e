UPDATE invoicing.email_delivery SET status = 'FAILED', error_code = $2 WHERE id = $1 AND status <> 'SENT';
