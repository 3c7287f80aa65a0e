-- $1 ids of jobs that are final: in how many claims they came. All that a claim takes begins at the same moment.
SELECT count(DISTINCT started_at) FROM (
    SELECT id, started_at FROM holdfast.finished
    UNION ALL
    SELECT id, started_at FROM holdfast.dead_letter
) AS final
WHERE id = ANY ($1)
