"""Enqueuing: builds jobs and events, and enqueues them through the app or in the caller's transaction."""
