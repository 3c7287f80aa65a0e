SELECT document_id, name, created_at FROM passports.documents WHERE tenant_id = $1 AND document_id = $2
