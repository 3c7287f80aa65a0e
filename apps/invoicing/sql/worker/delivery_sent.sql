UPDATE invoicing.email_delivery SET status = 'SENT', error_code = NULL, sent_at = clock_timestamp() WHERE id = $1;
