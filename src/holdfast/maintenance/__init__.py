"""Keeps a store in shape: partitions for the coming days, retention, compact counts."""
