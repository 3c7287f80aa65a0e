"""Applies the judge of `holdfast faults` to other job systems: same faults, but their own workers and recovery."""
