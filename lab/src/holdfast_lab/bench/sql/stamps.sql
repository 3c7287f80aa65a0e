-- When the handlers of the jobs that tell it were started.
SELECT id, result::text::float8 FROM holdfast.finished WHERE state = 'succeeded' AND result IS NOT NULL
