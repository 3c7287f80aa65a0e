UPDATE passports.rule_packages SET status = 'PUBLISHED', published_at = now() WHERE tenant_id = $1 AND rules_id = $2
