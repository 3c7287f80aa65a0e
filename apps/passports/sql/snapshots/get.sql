SELECT snapshot_id, status, created_at, sealed_at,
    ARRAY(
        SELECT document_version_id FROM passports.snapshot_documents
        WHERE tenant_id = $1 AND snapshot_id = $2 ORDER BY document_version_id
    ) AS document_version_ids
FROM passports.snapshots WHERE tenant_id = $1 AND snapshot_id = $2
