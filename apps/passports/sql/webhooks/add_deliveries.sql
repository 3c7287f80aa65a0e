INSERT INTO passports.webhook_deliveries (tenant_id, event_id, webhook_delivery_id, webhook_endpoint_id, status)
SELECT $1, $2, delivery, endpoint, 'PENDING' FROM unnest($3::uuid[], $4::uuid[]) AS each (delivery, endpoint)
