-- $2 the last number of the previous page or null, $3 at most
SELECT number, event_id, event_type, aggregate_type, aggregate_id, occurred_at, payload
FROM passports.audit_events WHERE tenant_id = $1 AND number > coalesce($2, 0) ORDER BY number LIMIT $3
