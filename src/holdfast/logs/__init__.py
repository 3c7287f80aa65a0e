"""Logging for programs that run jobs: `setup_logging`, and job fields for programs that set up their own logging."""

from holdfast.logs.records import JobLogFilter, job_fields
from holdfast.logs.setup import setup_logging

__all__ = ["JobLogFilter", "job_fields", "setup_logging"]
