-- $2 the last ID of the previous page or null, $3 at most, $4 the passport
SELECT passport_version_id, passport_id, snapshot_id, rules_id, build_id, issued_at, status, key_id, created_at
FROM passports.passport_versions
WHERE tenant_id = $1 AND passport_id = $4
    AND ($2::uuid IS NULL OR (created_at, passport_version_id) < (
        SELECT last.created_at, last.passport_version_id
        FROM passports.passport_versions AS last WHERE last.tenant_id = $1 AND last.passport_version_id = $2
    ))
ORDER BY created_at DESC, passport_version_id DESC LIMIT $3
