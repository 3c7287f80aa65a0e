-- Seconds until the earliest end of any lease of one holder. $1 and $2: the lowest and the highest of its claims
SELECT min(extract(epoch FROM until - clock_timestamp()))::float8 FROM holdfast.lease WHERE claim BETWEEN $1 AND $2
