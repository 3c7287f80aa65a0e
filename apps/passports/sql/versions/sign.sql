UPDATE passports.passport_versions SET status = 'SIGNED', signature = $3, key_id = $4
WHERE tenant_id = $1 AND passport_version_id = $2 AND status = 'COMPILED'
RETURNING passport_version_id
