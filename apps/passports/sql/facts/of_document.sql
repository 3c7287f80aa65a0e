-- $2 the last ID of the previous page or null, $3 at most, $4 the document version
SELECT fact_id, fact_type, fact_key, schema_version, payload::text AS payload, payload_hash
FROM passports.document_facts JOIN passports.facts USING (tenant_id, fact_id)
WHERE tenant_id = $1 AND document_version_id = $4
    AND ($2::uuid IS NULL OR (fact_type, fact_key, fact_id) > (
        SELECT last.fact_type, last.fact_key, last.fact_id
        FROM passports.facts AS last WHERE last.tenant_id = $1 AND last.fact_id = $2
    ))
ORDER BY fact_type, fact_key, fact_id LIMIT $3
