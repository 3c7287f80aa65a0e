SELECT status, media_type, content FROM passports.document_versions
WHERE tenant_id = $1 AND document_version_id = $2
