-- Only tests touch this row. Without it nothing knows the time.
SELECT moved, frozen_at FROM holdfast.clock
