SELECT status, webhook_endpoint_id, event_id,
    (
        SELECT disabled_at IS NOT NULL FROM passports.webhook_endpoints AS endpoint
        WHERE endpoint.tenant_id = $1 AND endpoint.webhook_endpoint_id = webhook_deliveries.webhook_endpoint_id
    ) AS is_disabled
FROM passports.webhook_deliveries
WHERE tenant_id = $1 AND webhook_delivery_id = $2 FOR UPDATE
