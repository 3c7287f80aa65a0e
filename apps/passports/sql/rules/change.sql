UPDATE passports.rule_packages SET source = $3 WHERE tenant_id = $1 AND rules_id = $2
