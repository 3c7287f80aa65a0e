SELECT
    (SELECT status FROM passports.snapshots WHERE tenant_id = $1 AND snapshot_id = $2) AS snapshot_status,
    (SELECT status FROM passports.rule_packages WHERE tenant_id = $1 AND rules_id = $3) AS rules_status,
    (SELECT source FROM passports.rule_packages WHERE tenant_id = $1 AND rules_id = $3) AS rules_source,
    EXISTS (SELECT FROM passports.passports WHERE tenant_id = $1 AND passport_id = $4) AS has_passport,
    EXISTS (
        SELECT FROM passports.snapshot_documents
        JOIN passports.document_versions USING (tenant_id, document_version_id)
        WHERE tenant_id = $1 AND snapshot_id = $2 AND status <> 'PARSED'
    ) AS has_unparsed
