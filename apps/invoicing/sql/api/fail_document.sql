-- Only as long as nobody else has said what became of it.
WITH failed AS (
    UPDATE platform.document
    SET state = 'FAILED', error_code = $3, error_message = $4, updated_at = now()
    WHERE id = $1 AND job_id = $2 AND state = 'PENDING'
    RETURNING file_id
)
UPDATE platform.file SET state = 'FAILED', updated_at = now()
FROM failed
WHERE file.id = failed.file_id AND file.state = 'PENDING'
