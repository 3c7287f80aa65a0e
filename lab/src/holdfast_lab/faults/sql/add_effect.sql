INSERT INTO holdfast.fault_effect (job_id, fence) VALUES ($1, $2)
