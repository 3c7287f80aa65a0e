-- A running job is known by its entry alone; a job that was rescued has several, or waits among the deferred ones.
SELECT job, 'not final' AS state
FROM (
    (SELECT (args ->> 'job')::uuid AS job FROM awa.ready_entries
     UNION SELECT (args ->> 'job')::uuid FROM awa.deferred_jobs)
    EXCEPT SELECT (args ->> 'job')::uuid FROM awa.terminal_jobs
) AS unfinished
