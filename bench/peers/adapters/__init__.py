"""One script for each peer, run in its environment, where there is only itself, the standard library and uvloop."""
