"""A worker as a program of its own: event loop, signals, health port, and an end that no handler can prevent."""
