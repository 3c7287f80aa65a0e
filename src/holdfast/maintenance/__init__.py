"""Upkeep of a store: coming partitions, retention, compact counts."""
