-- Insert succeeded jobs, evenly spread over the last days. The first of these days is older than the retention, so that
-- maintenance drops it. Inserted by hand, because running a million jobs takes a minute.
-- $1 jobs, $2 days, $3 kind, $4 payload
WITH made AS MATERIALIZED (
    SELECT at, (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0')
                || '7' || substr(random, 1, 3) || '8' || substr(random, 4, 15))::uuid AS id, number
    FROM (
        SELECT number, md5(number::text) AS random,
               date_trunc('day', clock_timestamp(), 'UTC') - ($1::integer - number + 1) * make_interval(days => $2) / $1::integer AS at
        FROM generate_series(1, $1::integer) AS number
    ) AS given
),
jobs AS (
    INSERT INTO holdfast.job (id, created_at, priority, queue, kind, tenant, correlation_id, payload)
    SELECT id, at, 5, 'default', $3, '', id::text, $4::text::json FROM made ORDER BY number
),
ended AS (
    INSERT INTO holdfast.finished (id, started_at, finished_at, attempt, losses, state)
    SELECT id, at, at, 1, 0, 'succeeded' FROM made ORDER BY number
)
INSERT INTO holdfast.ledger (day, state, amount, queue, kind)
SELECT holdfast.day_of(id), 'succeeded', count(*), 'default', $3 FROM made GROUP BY 1
