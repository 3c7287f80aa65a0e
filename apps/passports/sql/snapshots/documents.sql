SELECT document_version_id, status FROM passports.snapshot_documents
JOIN passports.document_versions USING (tenant_id, document_version_id)
WHERE tenant_id = $1 AND snapshot_id = $2
