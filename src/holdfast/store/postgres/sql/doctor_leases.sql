-- Leases that expired and were not rescued. The table holds only running jobs.
-- $1 how long a rescue may take
SELECT count(*) AS leases, max(moment.now - lease.until) AS oldest
FROM (SELECT holdfast.now() AS now) AS moment
JOIN holdfast.lease ON lease.until < moment.now - $1::interval
