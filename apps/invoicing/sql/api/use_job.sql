-- A document whose file is not READY is not READY either, whatever its state says.
UPDATE platform.document SET job_id = $2, state = 'PENDING', updated_at = now() WHERE id = $1 AND state <> 'FAILED'
