SELECT file.id, storage_key, content_type, bytes, sha256, coalesce(number, file.id::text) AS name
FROM platform.file
LEFT JOIN platform.document ON document.file_id = file.id
LEFT JOIN invoicing.invoice ON invoice.id = document.subject_id
WHERE file.id = $1 AND file.state = 'READY'
