-- The server's own clock, to be compared with that of the machine that asks.
SELECT clock_timestamp() AS now
