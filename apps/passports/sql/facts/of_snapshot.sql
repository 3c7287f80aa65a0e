SELECT DISTINCT fact_type, fact_key, schema_version, payload_hash, payload::text AS payload
FROM passports.snapshot_documents
JOIN passports.document_facts USING (tenant_id, document_version_id)
JOIN passports.facts USING (tenant_id, fact_id)
WHERE tenant_id = $1 AND snapshot_id = $2
