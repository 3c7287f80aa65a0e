-- How long ago each step of maintenance was last done. A time to come is that of a clock which was moved back: no answer.
SELECT upkeep.step, moment.now - upkeep.done_at AS ago
FROM (SELECT holdfast.now() AS now) AS moment JOIN holdfast.upkeep ON upkeep.done_at <= moment.now
