"""The engine on the memory store under a virtual clock: random schedules and faults, each replayable by its seed."""
