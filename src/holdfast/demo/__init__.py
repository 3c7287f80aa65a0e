"""The demo: the jobs of a small shop, a story in which things go wrong, and the proof that nothing was lost."""
