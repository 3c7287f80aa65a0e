-- $1 moment
SELECT count(*), extract(epoch FROM max(finished_at) - $1::timestamptz)::float8
FROM holdfast.finished WHERE state = 'succeeded'
