INSERT INTO passports.snapshots (tenant_id, snapshot_id) VALUES ($1, $2)
