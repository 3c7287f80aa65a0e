INSERT INTO passports.snapshot_documents (tenant_id, snapshot_id, document_version_id) VALUES ($1, $2, $3)
ON CONFLICT DO NOTHING
