"""The idempotency check: crash a handler after each step, run it again, and compare the result with one clean run."""
