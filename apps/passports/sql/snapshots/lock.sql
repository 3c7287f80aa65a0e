SELECT status FROM passports.snapshots WHERE tenant_id = $1 AND snapshot_id = $2 FOR UPDATE
