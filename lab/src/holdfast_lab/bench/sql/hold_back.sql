-- What was enqueued is not due yet: the workers can start without touching it.
UPDATE holdfast.clock SET moved = interval '-1 hour'
