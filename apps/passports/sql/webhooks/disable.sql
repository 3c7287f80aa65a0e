UPDATE passports.webhook_endpoints SET disabled_at = coalesce(disabled_at, now())
WHERE tenant_id = $1 AND webhook_endpoint_id = $2
RETURNING webhook_endpoint_id
