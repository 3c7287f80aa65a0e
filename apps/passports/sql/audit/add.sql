WITH numbered AS (
    UPDATE passports.tenants SET audit_number = audit_number + 1 WHERE tenant_id = $1 RETURNING audit_number
)
INSERT INTO passports.audit_events (tenant_id, number, event_id, event_type, aggregate_type, aggregate_id, payload)
SELECT $1, audit_number, $2, $3, $4, $5, $6 FROM numbered
RETURNING number
