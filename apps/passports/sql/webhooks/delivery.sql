SELECT webhook_delivery_id, webhook_endpoint_id, event_id, status, http_status, response_headers, response_body,
    delivered_at, error_message, created_at
FROM passports.webhook_deliveries WHERE tenant_id = $1 AND webhook_delivery_id = $2
