"""The runtime: a tick, which is one pass over the runners, and the background loop that repeats it."""
