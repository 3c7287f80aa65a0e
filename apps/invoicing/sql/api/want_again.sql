-- A person has retried the job, so its earlier failure no longer counts. It may have just ended.
WITH wanted AS (
    UPDATE platform.document
    SET state = 'PENDING', error_code = NULL, error_message = NULL, updated_at = now()
    FROM platform.file
    WHERE document.id = $1 AND job_id = $2 AND file.id = document.file_id AND 'FAILED' IN (document.state, file.state)
    RETURNING file_id
)
UPDATE platform.file SET state = 'PENDING', updated_at = now()
FROM wanted
WHERE file.id = wanted.file_id AND file.state = 'FAILED'
