-- How long ago each maintenance chore was last done. A time in the future comes from a clock that was later moved back,
-- and is left out.
SELECT maintenance.chore, moment.now - maintenance.done_at AS ago
FROM (SELECT holdfast.now() AS now) AS moment JOIN holdfast.maintenance ON maintenance.done_at <= moment.now
