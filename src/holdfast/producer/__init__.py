"""Enqueueing: building jobs, and the statement that enqueues one in a caller's own transaction."""
