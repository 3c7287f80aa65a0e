SELECT rules_id, name, source, status, created_at, published_at
FROM passports.rule_packages WHERE tenant_id = $1 AND rules_id = $2
