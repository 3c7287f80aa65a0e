SELECT EXISTS (SELECT FROM passports.passports WHERE tenant_id = $1 AND passport_id = $2) AS is_there,
    EXISTS (SELECT FROM passports.rule_packages WHERE tenant_id = $1 AND rules_id = $3) AS has_rules
