-- $2 the last ID of the previous page or null, $3 at most
SELECT document_id, name, created_at
FROM passports.documents
WHERE tenant_id = $1
    AND ($2::uuid IS NULL OR (created_at, document_id) < (
        SELECT last.created_at, last.document_id
        FROM passports.documents AS last WHERE last.tenant_id = $1 AND last.document_id = $2
    ))
ORDER BY created_at DESC, document_id DESC LIMIT $3
