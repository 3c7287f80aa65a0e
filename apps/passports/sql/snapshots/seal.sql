UPDATE passports.snapshots SET status = 'SEALED', sealed_at = now() WHERE tenant_id = $1 AND snapshot_id = $2
