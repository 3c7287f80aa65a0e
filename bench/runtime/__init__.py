"""Measures the runtime's promises about time: schedules under load, shutdown, and pick-up without a listener."""
