UPDATE passports.webhook_deliveries
SET status = 'PENDING', http_status = NULL, response_headers = NULL, response_body = NULL, delivered_at = NULL,
    error_message = NULL
WHERE tenant_id = $1 AND webhook_delivery_id = $2 AND status <> 'PENDING'
RETURNING webhook_delivery_id
