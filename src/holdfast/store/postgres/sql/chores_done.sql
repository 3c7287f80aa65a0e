-- How long ago each chore of maintenance was last done. A time to come is that of a clock which was moved back: no answer.
SELECT maintenance.chore, moment.now - maintenance.done_at AS ago
FROM (SELECT holdfast.now() AS now) AS moment JOIN holdfast.maintenance ON maintenance.done_at <= moment.now
