INSERT INTO passports.document_versions
    (tenant_id, document_version_id, document_id, version, media_type, content, content_hash)
SELECT $1, $2, $3, coalesce(max(version), 0) + 1, $4, $5, sha256($5)
FROM passports.document_versions WHERE tenant_id = $1 AND document_id = $3
RETURNING version
