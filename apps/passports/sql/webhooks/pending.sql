-- Of every tenant: it looks for deliveries whose job ended without them, and settles each within its own tenant.
SELECT tenant_id, webhook_delivery_id FROM passports.webhook_deliveries
WHERE status = 'PENDING' AND created_at < now() - interval '1 minute' ORDER BY created_at LIMIT 1000
