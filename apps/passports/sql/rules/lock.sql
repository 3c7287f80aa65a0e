SELECT status, source FROM passports.rule_packages WHERE tenant_id = $1 AND rules_id = $2 FOR UPDATE
