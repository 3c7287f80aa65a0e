-- Candidate "cursor", on top of "batch": the least that a claim from append-only segments has to do. Rows of `ready` are neither
-- locked nor deleted; a cursor per lane says how far it was claimed, and segments behind it would be truncated. It is a lower
-- bound of the cost, no layout to use: a job that is committed late, behind the cursor, is never found.
CREATE TABLE holdfast.lane_cursor (
    queue text COLLATE "C" NOT NULL,
    priority smallint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    run_at timestamptz NOT NULL,
    id uuid NOT NULL,
    PRIMARY KEY (queue, priority, kind)
) WITH (fillfactor = 10);
