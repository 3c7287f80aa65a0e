SELECT passport_id, name, created_at FROM passports.passports WHERE tenant_id = $1 AND passport_id = $2
