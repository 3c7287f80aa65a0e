-- The store's clock in microseconds since 2000, which is the format of timestamps in COPY.
SELECT (1000000 * extract(epoch FROM holdfast.now() - timestamptz '2000-01-01 00:00:00+00'))::bigint AS moment
