SELECT webhook_endpoint_id, url, secret, next_secret, created_at FROM passports.webhook_endpoints
WHERE tenant_id = $1 AND webhook_endpoint_id = $2
