-- Wakes who sleeps on these queues. $1 queues
SELECT holdfast.ring($1::text[])
