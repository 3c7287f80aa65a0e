-- Of every tenant: it looks for deliveries whose job ended without them, and settles each within its own tenant.
-- $1 and $2 the last row of the previous page or null, $3 at most
SELECT tenant_id, created_at, webhook_delivery_id FROM passports.webhook_deliveries
WHERE status = 'PENDING' AND created_at < now() - interval '1 minute'
    AND ($1::timestamptz IS NULL OR (created_at, webhook_delivery_id) > ($1, $2::uuid))
ORDER BY created_at, webhook_delivery_id LIMIT $3
