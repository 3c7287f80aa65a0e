-- The simplest queue that keeps an order and loses nothing: one table, in which a job either exists or is gone.
CREATE TABLE holdfast.bare_queue (
    id uuid NOT NULL PRIMARY KEY,
    run_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    priority smallint NOT NULL,
    queue text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    payload json NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_analyze_threshold = 5000);
CREATE INDEX bare_queue_order ON holdfast.bare_queue (queue, priority, run_at, id);
