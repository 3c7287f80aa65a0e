SELECT count(*) FROM pg_locks WHERE relation = 'holdfast.ready'::regclass AND NOT granted
