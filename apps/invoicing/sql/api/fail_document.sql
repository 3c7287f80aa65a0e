-- Only while no other process has recorded its outcome. It is READY if both records are.
WITH failed AS (
    UPDATE platform.document
    SET state = 'FAILED', error_code = $3, error_message = $4, updated_at = now()
    FROM platform.file
    WHERE document.id = $1 AND job_id = $2 AND document.state <> 'FAILED'
        AND file.id = document.file_id AND (document.state, file.state) <> ('READY', 'READY')
    RETURNING file_id
)
UPDATE platform.file SET state = 'FAILED', bytes = NULL, sha256 = NULL, updated_at = now()
FROM failed
WHERE file.id = failed.file_id
