INSERT INTO platform.document (id, kind, subject_id, file_id, job_id) VALUES ($1, $2, $3, $4, $5)
