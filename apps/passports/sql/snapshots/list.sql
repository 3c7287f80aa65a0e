-- $2 the last ID of the previous page or null, $3 at most
SELECT snapshot_id, status, created_at, sealed_at
FROM passports.snapshots
WHERE tenant_id = $1
    AND ($2::uuid IS NULL OR (created_at, snapshot_id) < (
        SELECT last.created_at, last.snapshot_id
        FROM passports.snapshots AS last WHERE last.tenant_id = $1 AND last.snapshot_id = $2
    ))
ORDER BY created_at DESC, snapshot_id DESC LIMIT $3
