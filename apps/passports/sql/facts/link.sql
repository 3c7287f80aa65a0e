INSERT INTO passports.document_facts (tenant_id, document_version_id, fact_id)
SELECT $1, $2, fact_id
FROM unnest($3::text[], $4::text[], $5::int[], $6::bytea[]) AS each (fact_type, fact_key, schema_version, payload_hash)
JOIN passports.facts USING (fact_type, fact_key, schema_version, payload_hash)
WHERE tenant_id = $1
