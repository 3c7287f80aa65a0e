-- Days without a partition, as text; the number of rows in the default partitions, up to a bound; and the first days of
-- partitions that retention should have dropped by now.
-- $1 how many days from today, $2 bound, $3 retention
WITH part AS MATERIALIZED (
    SELECT days.day, days.upto FROM holdfast.partition_days() AS days
    WHERE to_regclass('holdfast.finished_' || to_char(days.day, 'YYYYMMDD')) IS NOT NULL
)
SELECT ARRAY(
           SELECT to_char(day, 'YYYY-MM-DD')
           FROM generate_series(0, $1::integer - 1) AS number
           CROSS JOIN LATERAL (SELECT (holdfast.now() AT TIME ZONE 'UTC')::date + number AS day) AS coming
           WHERE NOT EXISTS (SELECT FROM part WHERE part.day <= coming.day AND part.upto > coming.day)
           ORDER BY day
       ) AS missing,
       ARRAY(
           SELECT to_char(part.day, 'YYYY-MM-DD') FROM part WHERE holdfast.is_overdue(part.day, $3::interval) ORDER BY part.day
       ) AS overdue,
       (SELECT count(*) FROM (SELECT FROM holdfast.job_other LIMIT $2) AS bounded) AS jobs,
       (SELECT count(*) FROM (SELECT FROM holdfast.finished_other LIMIT $2) AS bounded) AS finished,
       EXISTS (
           SELECT FROM pg_constraint
           WHERE conrelid IN ('holdfast.job_other'::regclass, 'holdfast.finished_other'::regclass) AND conname = 'guard'
       ) AS has_guard
