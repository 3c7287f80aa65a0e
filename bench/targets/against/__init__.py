"""`python -m bench.targets --against COMMIT`: the working tree and another commit, measured in interleaved pairs."""
