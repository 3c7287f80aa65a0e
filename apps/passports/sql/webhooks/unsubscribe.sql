DELETE FROM passports.webhook_subscriptions WHERE tenant_id = $1 AND webhook_endpoint_id = $2 AND event_type = $3
RETURNING webhook_subscription_id
