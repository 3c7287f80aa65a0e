"""Who listens to which events."""
