"""Measures storage layouts for the job queue; see docs/decisions/0001-storage-layout.md for what came of it."""
