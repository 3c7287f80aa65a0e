-- $2 the last ID of the previous page or null, $3 at most
SELECT passport_id, name, created_at
FROM passports.passports
WHERE tenant_id = $1
    AND ($2::uuid IS NULL OR (created_at, passport_id) < (
        SELECT last.created_at, last.passport_id
        FROM passports.passports AS last WHERE last.tenant_id = $1 AND last.passport_id = $2
    ))
ORDER BY created_at DESC, passport_id DESC LIMIT $3
