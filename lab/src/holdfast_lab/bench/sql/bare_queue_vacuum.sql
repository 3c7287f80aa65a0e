VACUUM (ANALYZE) holdfast.bare_queue
