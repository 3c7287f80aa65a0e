"""Faults, simulation and benchmarks: what shows that Holdfast keeps its promises. Applications do not need it."""
