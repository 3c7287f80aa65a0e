-- When the handlers of stamped jobs started.
SELECT id, result::text::float8 FROM holdfast.finished WHERE state = 'succeeded' AND result IS NOT NULL
