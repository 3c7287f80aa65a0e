"""Measures what the runtime promises about time: schedules beside other work, shutdown, pick-up without a listener."""
