"""Maintains a store: partitions for the coming days, retention, compact counts."""
