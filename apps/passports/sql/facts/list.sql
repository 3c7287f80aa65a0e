-- $2 the last ID of the previous page or null, $3 at most, $4 a type or null, $5 a key or null
SELECT fact_id, fact_type, fact_key, schema_version, payload::text AS payload, payload_hash
FROM passports.facts
WHERE tenant_id = $1 AND ($4::text IS NULL OR fact_type = $4) AND ($5::text IS NULL OR fact_key = $5)
    AND ($2::uuid IS NULL OR (fact_type, fact_key, schema_version, payload_hash) > (
        SELECT last.fact_type, last.fact_key, last.schema_version, last.payload_hash
        FROM passports.facts AS last WHERE last.tenant_id = $1 AND last.fact_id = $2
    ))
ORDER BY fact_type, fact_key, schema_version, payload_hash LIMIT $3
