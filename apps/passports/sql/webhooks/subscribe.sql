INSERT INTO passports.webhook_subscriptions (tenant_id, webhook_subscription_id, webhook_endpoint_id, event_type)
SELECT $1, gen_random_uuid(), webhook_endpoint_id, $3 FROM passports.webhook_endpoints
WHERE tenant_id = $1 AND webhook_endpoint_id = $2
ON CONFLICT (tenant_id, webhook_endpoint_id, event_type) DO NOTHING
