UPDATE passports.webhook_deliveries
SET status = $3, http_status = $4, response_headers = $5, response_body = $6, error_message = $7,
    delivered_at = CASE WHEN $3 = 'DELIVERED' THEN now() END
WHERE tenant_id = $1 AND webhook_delivery_id = $2 AND status = 'PENDING'
RETURNING webhook_delivery_id
