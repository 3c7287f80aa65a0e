-- Whether a job waits to be claimed.
SELECT EXISTS (SELECT FROM holdfast.ready)
