SELECT count(*) AS count FROM passports.audit_events WHERE tenant_id = $1 AND aggregate_id = $2
