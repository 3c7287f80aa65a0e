-- Make every claim wait until the end of this transaction.
LOCK TABLE holdfast.ready IN ACCESS EXCLUSIVE MODE
