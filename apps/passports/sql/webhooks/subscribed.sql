SELECT webhook_endpoint_id
FROM passports.webhook_subscriptions JOIN passports.webhook_endpoints USING (tenant_id, webhook_endpoint_id)
WHERE tenant_id = $1 AND event_type = $2 AND disabled_at IS NULL ORDER BY webhook_endpoint_id
