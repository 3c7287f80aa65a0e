-- Returns what was renewed; why_not_held.sql tells about the rest.
-- Per lease: $1 ids, $2 fences, $3 holders, $4 extensions, $5 progress
SELECT id, fence, cancel_requested FROM holdfast.renew($1, $2, $3, $4, $5)
