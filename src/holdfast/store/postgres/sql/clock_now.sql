-- The store's clock, as every statement reads it.
SELECT holdfast.now() AS now
