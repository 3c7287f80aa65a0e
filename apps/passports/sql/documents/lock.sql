SELECT document_id FROM passports.documents WHERE tenant_id = $1 AND document_id = $2 FOR UPDATE
