INSERT INTO passports.snapshot_documents (tenant_id, snapshot_id, document_version_id)
SELECT $1, $2, document_version_id FROM passports.document_versions WHERE tenant_id = $1 AND document_version_id = $3
ON CONFLICT DO NOTHING
