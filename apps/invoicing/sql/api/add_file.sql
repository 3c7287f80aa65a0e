-- The file's purpose determines its key, so the file may already exist.
INSERT INTO platform.file AS file (id, storage_key, content_type) VALUES ($1, $2, $3)
ON CONFLICT (storage_key) DO UPDATE SET content_type = file.content_type
RETURNING id
