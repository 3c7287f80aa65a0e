SELECT document_version_id, document_id, version, media_type, content_hash, status, created_at
FROM passports.document_versions WHERE tenant_id = $1 AND document_version_id = $2
