-- $2 the last version of the previous page or null, $3 at most, $4 the document
SELECT document_version_id, document_id, version, media_type, content_hash, status, created_at
FROM passports.document_versions
WHERE tenant_id = $1 AND document_id = $4 AND version > coalesce($2, 0) ORDER BY version LIMIT $3
