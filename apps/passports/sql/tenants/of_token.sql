SELECT tenant_id FROM passports.tenants WHERE token_hash = $1
