UPDATE passports.webhook_endpoints SET next_secret = $3
WHERE tenant_id = $1 AND webhook_endpoint_id = $2 AND next_secret IS NULL
RETURNING webhook_endpoint_id
