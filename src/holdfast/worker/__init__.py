"""The worker: claimer, executor and finisher in sequence, with the lease keeper alongside. worker.py connects them."""
