SELECT count(*) FROM holdfast.clock
