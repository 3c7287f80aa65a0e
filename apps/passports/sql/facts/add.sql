-- In the order of the constraint, so that two documents with the same facts do not deadlock.
INSERT INTO passports.facts (tenant_id, fact_id, fact_type, fact_key, schema_version, payload, payload_hash)
SELECT $1, gen_random_uuid(), fact_type, fact_key, schema_version, payload, payload_hash
FROM unnest($2::text[], $3::text[], $4::int[], $5::jsonb[], $6::bytea[])
    AS each (fact_type, fact_key, schema_version, payload, payload_hash)
ORDER BY fact_type, fact_key, schema_version, payload_hash
ON CONFLICT (tenant_id, fact_type, fact_key, schema_version, payload_hash) DO NOTHING
