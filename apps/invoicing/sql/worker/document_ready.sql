WITH written AS (
    UPDATE platform.file SET state = 'READY', bytes = $2, sha256 = $3, updated_at = now()
    FROM platform.document WHERE document.id = $1 AND file.id = document.file_id
)
UPDATE platform.document SET state = 'READY', error_code = NULL, error_message = NULL, updated_at = now() WHERE id = $1;
