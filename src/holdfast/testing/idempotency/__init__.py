"""The idempotency check: a crash after each step of a handler, a second run, and what differs from one clean run."""
