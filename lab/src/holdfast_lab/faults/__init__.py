"""The fault laboratory: real faults, done to real processes, and a judge with a record of its own."""
