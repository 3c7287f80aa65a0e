"""The judge of `holdfast faults` on other job systems: the same faults, their own workers, their own recovery."""
