INSERT INTO passports.webhook_endpoints (tenant_id, webhook_endpoint_id, url, secret) VALUES ($1, $2, $3, $4)
