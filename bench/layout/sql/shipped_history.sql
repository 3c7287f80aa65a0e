-- What is in the store before the load: deferred jobs, more urgent than the load and of the same queue, dead letters, and
-- finished jobs of the last eight days. {deferred}, {dead} and {finished} are numbers, {payload} is a JSON text.
SELECT holdfast.add_partitions((clock_timestamp() AT TIME ZONE 'UTC')::date - 8, 8);
CREATE TEMP TABLE past AS
SELECT (substr(holdfast.first_id(made.created_at)::text, 1, 13) || '-7' || substr(made.noise, 1, 3) || '-8' || substr(made.noise, 4, 3)
        || '-' || substr(made.noise, 7, 12))::uuid AS id, made.purpose, 'kind_' || made.number % 4 AS kind, made.created_at
FROM (
    SELECT wanted.purpose, number, md5(random()::text) AS noise,
           CASE wanted.purpose WHEN 'deferred' THEN clock_timestamp()
                ELSE clock_timestamp() - interval '8 days' * (1 - number / (amount + 1)::float8) END AS created_at
    FROM (VALUES ('deferred', {deferred}), ('dead', {dead}), ('finished', {finished})) AS wanted (purpose, amount),
         generate_series(1, amount) AS number
) AS made
ORDER BY 1;
INSERT INTO holdfast.job (id, created_at, priority, queue, kind, tenant, correlation_id, payload)
SELECT id, created_at, CASE purpose WHEN 'deferred' THEN 0 ELSE 5 END, 'default', kind, '', id::text, {payload} FROM past;
INSERT INTO holdfast.ready (id, run_at, priority, queue, kind)
SELECT id, clock_timestamp() + interval '1 day', 0, 'default', kind FROM past WHERE purpose = 'deferred';
INSERT INTO holdfast.finished (id, fence, started_at, finished_at, attempt, losses, state)
SELECT id, nextval('holdfast.fence'), created_at, created_at, 1, 0, 'succeeded' FROM past WHERE purpose = 'finished';
INSERT INTO holdfast.dead_letter (id, fence, created_at, started_at, finished_at, priority, attempt, losses, state, queue,
                                  kind, tenant, correlation_id, payload)
SELECT id, nextval('holdfast.fence'), created_at, created_at, created_at, 5, 1, 0, 'dead', 'default', kind, '', id::text, {payload}
FROM past WHERE purpose = 'dead';
DROP TABLE past;
