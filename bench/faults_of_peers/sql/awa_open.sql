-- A running job has only its entry; a rescued job has several entries, or waits among the deferred ones.
SELECT job, 'not final' AS state
FROM (
    (SELECT (args ->> 'job')::uuid AS job FROM awa.ready_entries
     UNION SELECT (args ->> 'job')::uuid FROM awa.deferred_jobs)
    EXCEPT SELECT (args ->> 'job')::uuid FROM awa.terminal_jobs
) AS unfinished
