-- Wakes, on commit, one process of each team that sleeps on each of these queues, and asks another one to look a moment
-- later in case the first does not respond. wake/postgres.py listens, and builds the channel's name in the same way. A
-- job therefore costs the same however many processes sleep. The first process is chosen at random, which spreads the
-- jobs of a burst. The other is always the same, so it looks once for many jobs. Processes that renewed their row
-- recently come before those that may be dead or frozen. A process that can take no more passes the ring on
-- (sql/pass_on.sql). Enqueuing first checks whether any process sleeps, because the call alone takes 20 us.
CREATE OR REPLACE FUNCTION holdfast.ring(queues text[]) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
    PERFORM holdfast.hint('holdfast_sleeper_' || chosen.woken, 'now:' || chosen.queue),
            CASE WHEN chosen.other IS NOT NULL
                 THEN holdfast.hint('holdfast_sleeper_' || chosen.other, 'later:' || chosen.queue) END
    FROM (
        SELECT team.queue, team.drawn[1] AS woken,
               CASE WHEN team.sorted[1] = team.drawn[1] THEN team.sorted[2] ELSE team.sorted[1] END AS other
        FROM (
            SELECT known.queue,
                   array_agg(known.holder ORDER BY known.is_late, random()) AS drawn,
                   array_agg(known.holder ORDER BY known.is_late, known.holder) AS sorted
            FROM (
                SELECT sleeper.queue, sleeper.team, sleeper.holder,
                       sleeper.until < statement_timestamp() + interval '9 seconds' AS is_late
                FROM holdfast.sleeper
                WHERE sleeper.queue = ANY (queues) AND sleeper.until > statement_timestamp()
            ) AS known
            GROUP BY known.queue, known.team
        ) AS team
    ) AS chosen;
END
$$;
