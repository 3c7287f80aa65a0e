-- $2 the last ID of the previous page or null, $3 at most, $4 a status or null
SELECT webhook_delivery_id, webhook_endpoint_id, event_id, status, http_status, delivered_at, error_message, created_at
FROM passports.webhook_deliveries
WHERE tenant_id = $1 AND ($4::text IS NULL OR status = $4)
    AND ($2::uuid IS NULL OR (created_at, webhook_delivery_id) < (
        SELECT last.created_at, last.webhook_delivery_id
        FROM passports.webhook_deliveries AS last WHERE last.tenant_id = $1 AND last.webhook_delivery_id = $2
    ))
ORDER BY created_at DESC, webhook_delivery_id DESC LIMIT $3
