"""Waiting for jobs to become final."""
