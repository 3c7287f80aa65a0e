UPDATE passports.webhook_deliveries SET status = 'FAILED', error_message = coalesce(error_message, $3)
WHERE tenant_id = $1 AND webhook_delivery_id = $2 AND status = 'PENDING'
RETURNING webhook_delivery_id
