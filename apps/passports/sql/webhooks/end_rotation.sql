UPDATE passports.webhook_endpoints SET secret = next_secret, next_secret = NULL
WHERE tenant_id = $1 AND webhook_endpoint_id = $2 AND next_secret IS NOT NULL
RETURNING webhook_endpoint_id
