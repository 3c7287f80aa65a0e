INSERT INTO passports.documents (tenant_id, document_id, name) VALUES ($1, $2, $3)
