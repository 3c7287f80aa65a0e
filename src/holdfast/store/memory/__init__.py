"""The store in memory: the simplest implementation of the contract."""
