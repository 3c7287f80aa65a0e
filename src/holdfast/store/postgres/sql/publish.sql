-- The call with casts and parameter names, so any driver can run it in the caller's own transaction. Ids come back as
-- text, because a caller's connection may decode uuids in any way.
-- $1 type, $2 payload, $3 tenant, $4 key, $5 correlation id, $6 headers, $7 event id
SELECT subscription, id::text, is_new
FROM holdfast.publish(
    event_type => $1::text, payload => $2::text::json, tenant => $3::text, key => $4::text,
    correlation_id => $5::text, headers => $6::text::json, event_id => $7::uuid
)
