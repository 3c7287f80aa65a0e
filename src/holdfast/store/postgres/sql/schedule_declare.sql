-- An unchanged declaration is neither written nor locked, because every process declares when it starts. Saving always
-- returns its row, unless code has declared the name. Rows are taken in order of name, so two processes cannot
-- deadlock.
-- $1 names, $2 timetables, $3 zones, $4 missed, $5 missed limits, $6 origins, $7 first occurrences, $8 kinds, $9 payloads,
-- $10 queues, $11 priorities, $12 tenants, $13 headers, $14 max attempts
INSERT INTO holdfast.schedule AS kept (
    name, timetable, zone, missed, missed_limit, origin, next_occurrence, kind, payload, queue, priority, tenant, headers,
    max_attempts
)
SELECT name, timetable, zone, missed, missed_limit, origin, first_occurrence, kind, payload::json, queue, priority, tenant,
       headers::json, max_attempts
FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::integer[], $6::text[], $7::timestamptz[], $8::text[],
            $9::text[], $10::text[], $11::smallint[], $12::text[], $13::text[], $14::smallint[])
    AS given (name, timetable, zone, missed, missed_limit, origin, first_occurrence, kind, payload, queue, priority, tenant,
              headers, max_attempts)
WHERE given.origin = 'stored' OR NOT EXISTS (
    SELECT FROM holdfast.schedule AS same
    WHERE same.name = given.name
      AND (same.timetable, same.zone, same.missed, same.missed_limit, same.origin, same.kind, same.payload::text,
           same.queue, same.priority, same.tenant, same.headers::text, same.max_attempts)
          IS NOT DISTINCT FROM
          (given.timetable, given.zone, given.missed, given.missed_limit, given.origin, given.kind, given.payload,
           given.queue, given.priority, given.tenant, given.headers, given.max_attempts)
)
ORDER BY given.name
ON CONFLICT (name) DO UPDATE
SET timetable = excluded.timetable, zone = excluded.zone, missed = excluded.missed, missed_limit = excluded.missed_limit,
    origin = excluded.origin, kind = excluded.kind, payload = excluded.payload, queue = excluded.queue,
    priority = excluded.priority, tenant = excluded.tenant, headers = excluded.headers,
    max_attempts = excluded.max_attempts,
    next_occurrence = CASE WHEN (kept.timetable, kept.zone) = (excluded.timetable, excluded.zone)
                     THEN kept.next_occurrence ELSE excluded.next_occurrence END
WHERE excluded.origin = 'code' OR kept.origin = 'stored'
RETURNING kept.name
