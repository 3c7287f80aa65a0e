"""Measures Holdfast on this machine with real workers, a real PostgreSQL and figures read from the store."""
