"""Runs a worker as a program: event loop, signals, health port, and an exit that no handler can prevent."""
