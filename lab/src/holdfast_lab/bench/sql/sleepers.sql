SELECT count(DISTINCT holder) FROM holdfast.sleeper WHERE until > clock_timestamp()
