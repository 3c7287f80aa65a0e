UPDATE passports.tenants SET token_hash = $2 WHERE tenant_id = $1 RETURNING tenant_id
