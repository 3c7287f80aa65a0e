-- Paused schedules, and schedules whose occurrence has passed while no run is in progress. An inline runner's
-- occurrence is marked done only when its run ends.
-- $1 how late is late, $2 how long a run may take, $3 at most
WITH moment AS MATERIALIZED (SELECT holdfast.now() AS now)
SELECT schedule.name, schedule.paused, moment.now - schedule.next_occurrence AS late_by
FROM moment CROSS JOIN holdfast.schedule
WHERE schedule.paused
   OR schedule.next_occurrence < moment.now - $1::interval
      AND NOT EXISTS (SELECT FROM holdfast.run
                      WHERE run.name = schedule.name AND run.finished_at IS NULL AND run.started_at > moment.now - $2::interval)
ORDER BY schedule.paused, late_by DESC
LIMIT $3
