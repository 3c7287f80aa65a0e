-- Whether a job is waiting to be claimed.
SELECT EXISTS (SELECT FROM holdfast.ready)
