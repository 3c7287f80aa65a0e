INSERT INTO passports.passport_versions (
    tenant_id, passport_version_id, passport_id, snapshot_id, rules_id, build_id, issued_at,
    payload, payload_hash, proof_root_hash, receipt, receipt_hash
)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
ON CONFLICT (tenant_id, passport_id, snapshot_id, rules_id, build_id, issued_at) DO NOTHING
RETURNING passport_version_id
