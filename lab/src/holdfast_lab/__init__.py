"""Fault tests, simulation and benchmarks that check Holdfast's promises. Applications do not need this package."""
