UPDATE passports.document_versions SET status = 'PARSED'
WHERE tenant_id = $1 AND document_version_id = $2 AND status = 'UPLOADED'
RETURNING document_id
