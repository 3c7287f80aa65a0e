INSERT INTO passports.tenants (tenant_id, name, token_hash) VALUES ($1, $2, $3)
