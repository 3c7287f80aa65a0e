"""Compares Holdfast with other PostgreSQL job systems, each through its public interface (docs/benchmarks.md)."""
