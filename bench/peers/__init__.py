"""Holdfast beside other PostgreSQL job systems, each through its own public interface (docs/benchmarks.md)."""
