"""The worker: claimer, executor and finisher in a row, the lease keeper beside them; worker.py wires them."""
