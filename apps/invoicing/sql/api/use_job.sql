UPDATE platform.document SET job_id = $2, updated_at = now() WHERE id = $1 AND state = 'PENDING'
