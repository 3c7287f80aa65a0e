"""Schedules as code declares them, and the runners that act at their occurrences."""
