-- Days without a partition of both tables, as text, and rows that went to the default ones, up to a bound.
-- $1 how many days from today, $2 bound
SELECT ARRAY(
           SELECT to_char(day, 'YYYY-MM-DD')
           FROM generate_series(0, $1::integer - 1) AS number
           CROSS JOIN LATERAL (SELECT (holdfast.now() AT TIME ZONE 'UTC')::date + number AS day) AS coming
           WHERE to_regclass('holdfast.job_' || to_char(day, 'YYYYMMDD')) IS NULL
              OR to_regclass('holdfast.finished_' || to_char(day, 'YYYYMMDD')) IS NULL
           ORDER BY day
       ) AS missing,
       (SELECT count(*) FROM (SELECT FROM holdfast.job_other LIMIT $2) AS bounded) AS jobs,
       (SELECT count(*) FROM (SELECT FROM holdfast.finished_other LIMIT $2) AS bounded) AS finished
