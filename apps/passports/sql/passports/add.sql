INSERT INTO passports.passports (tenant_id, passport_id, name) VALUES ($1, $2, $3)
