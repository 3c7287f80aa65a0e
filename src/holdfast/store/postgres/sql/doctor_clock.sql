-- Only tests change this row. Without it, no statement can read the time.
SELECT moved, frozen_at FROM holdfast.clock
