UPDATE passports.passport_versions SET status = 'LABELED', qr_payload = $3, qr_png = $4
WHERE tenant_id = $1 AND passport_version_id = $2 AND status = 'SIGNED'
RETURNING passport_version_id
