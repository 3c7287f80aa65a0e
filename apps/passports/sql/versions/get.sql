SELECT passport_version_id, passport_id, snapshot_id, rules_id, build_id, issued_at, status, payload, payload_hash,
    proof_root_hash, receipt, receipt_hash, signature, key_id, qr_payload, qr_png, created_at
FROM passports.passport_versions WHERE tenant_id = $1 AND passport_version_id = $2
