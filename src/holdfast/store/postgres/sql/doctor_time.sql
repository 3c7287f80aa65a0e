-- The server's own clock, to compare with the clock of the client.
SELECT clock_timestamp() AS now
