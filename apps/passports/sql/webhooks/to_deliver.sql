SELECT delivery.status, delivery.webhook_endpoint_id, endpoint.url, endpoint.secret, endpoint.next_secret,
    endpoint.disabled_at IS NOT NULL AS is_disabled,
    event.event_id, event.event_type, event.aggregate_type, event.aggregate_id, event.occurred_at, event.payload
FROM passports.webhook_deliveries AS delivery
JOIN passports.webhook_endpoints AS endpoint USING (tenant_id, webhook_endpoint_id)
JOIN passports.audit_events AS event USING (tenant_id, event_id)
WHERE delivery.tenant_id = $1 AND delivery.webhook_delivery_id = $2
