INSERT INTO passports.rule_packages (tenant_id, rules_id, name, source) VALUES ($1, $2, $3, $4)
