"""Measures Holdfast on the machine at hand: real workers, a real PostgreSQL, figures read from the store."""
