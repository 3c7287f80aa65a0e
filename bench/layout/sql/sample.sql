-- Rows that are there before the load starts; made once, copied into each candidate.
DROP SCHEMA IF EXISTS sample CASCADE;
CREATE SCHEMA sample;
CREATE TABLE sample.unrelated (note text);
CREATE TABLE sample.job AS
SELECT (lpad(to_hex((extract(epoch FROM j.created_at) * 1000)::bigint), 12, '0')
        || '7' || substr(j.noise, 1, 3) || '8' || substr(j.noise, 5, 15))::uuid AS id,
       j.purpose, 'default'::text AS queue, 'kind_' || j.number % 4 AS kind,
       (CASE j.purpose WHEN 'deferred' THEN 0 ELSE 2 END)::smallint AS priority,
       CASE j.purpose WHEN 'deferred' THEN clock_timestamp() + interval '1 day' ELSE j.created_at END AS run_at,
       :payload::jsonb AS payload, NULL::jsonb AS headers,
       'tenant_' || j.number % 50 AS tenant, j.noise AS correlation_id, NULL::text AS key, 4::smallint AS max_attempts,
       j.created_at
FROM (
    SELECT purpose, number, md5(random()::text) AS noise,
           CASE purpose WHEN 'deferred' THEN clock_timestamp()
                ELSE date_trunc('day', clock_timestamp()) - interval '8 days'
                     + interval '8 days' * ((number - 1) / amount::float8) END AS created_at
    FROM (VALUES ('deferred', :deferred), ('dead', :dead), ('finished', :finished)) AS wanted (purpose, amount),
         generate_series(1, amount) AS number
) AS j
ORDER BY 1;
VACUUM ANALYZE sample.job;
