-- All jobs that are not final: whether each is leased, and for how many seconds its lease has been over.
SELECT id, kind, false AS is_leased, 0::bigint AS fence, NULL::float8 AS overdue FROM holdfast.ready
UNION ALL
SELECT id, kind, true, fence, extract(epoch FROM clock_timestamp() - until)::float8 FROM holdfast.lease
