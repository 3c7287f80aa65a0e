-- How many claims took these final jobs. All jobs of one claim have the same start time. $1 ids
SELECT count(DISTINCT started_at) FROM (
    SELECT id, started_at FROM holdfast.finished
    UNION ALL
    SELECT id, started_at FROM holdfast.dead_letter
) AS final
WHERE id = ANY ($1)
