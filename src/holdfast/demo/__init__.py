"""The demonstration: a small shop's jobs, a story in which things go wrong, and the proof that nothing was lost."""
