-- $2 the last ID of the previous page or null, $3 at most
SELECT rules_id, name, status, created_at, published_at
FROM passports.rule_packages
WHERE tenant_id = $1
    AND ($2::uuid IS NULL OR (created_at, rules_id) < (
        SELECT last.created_at, last.rules_id
        FROM passports.rule_packages AS last WHERE last.tenant_id = $1 AND last.rules_id = $2
    ))
ORDER BY created_at DESC, rules_id DESC LIMIT $3
