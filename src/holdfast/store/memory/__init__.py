"""The store in memory: the plainest reading of the contract."""
