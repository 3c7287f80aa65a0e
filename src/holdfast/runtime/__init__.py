"""The runtime: one tick over the runners, and the background loop that repeats it."""
