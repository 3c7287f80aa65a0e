-- Make enqueued jobs not due yet, so that workers can start without touching them.
UPDATE holdfast.clock SET moved = interval '-1 hour'
