-- $2 the last ID of the previous page or null, $3 at most, $4 the only endpoint or null
SELECT webhook_endpoint_id, url, next_secret IS NOT NULL AS is_rotating, created_at, disabled_at,
    ARRAY(
        SELECT event_type FROM passports.webhook_subscriptions AS subscription
        WHERE subscription.tenant_id = $1
            AND subscription.webhook_endpoint_id = webhook_endpoints.webhook_endpoint_id ORDER BY event_type
    ) AS event_types
FROM passports.webhook_endpoints
WHERE tenant_id = $1 AND ($4::uuid IS NULL OR webhook_endpoint_id = $4)
    AND ($2::uuid IS NULL OR (created_at, webhook_endpoint_id) < (
        SELECT last.created_at, last.webhook_endpoint_id
        FROM passports.webhook_endpoints AS last WHERE last.tenant_id = $1 AND last.webhook_endpoint_id = $2
    ))
ORDER BY created_at DESC, webhook_endpoint_id DESC LIMIT $3
