"""What a schedule declares, and the runners that act at its occurrences."""
