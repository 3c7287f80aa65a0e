CREATE TABLE holdfast.fault_effect (job_id uuid NOT NULL, fence bigint NOT NULL)
