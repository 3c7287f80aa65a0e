"""Waiting for jobs to become final: all who wait in a process share one connection and one look at a time."""
