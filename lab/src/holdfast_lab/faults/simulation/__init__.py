"""Runs the engine on the memory store under a virtual clock, with random schedules and faults replayable by seed."""
