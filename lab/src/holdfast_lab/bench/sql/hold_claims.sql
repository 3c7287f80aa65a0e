-- Until the end of the transaction every claim waits.
LOCK TABLE holdfast.ready IN ACCESS EXCLUSIVE MODE
