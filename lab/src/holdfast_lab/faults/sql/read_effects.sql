SELECT job_id, fence FROM holdfast.fault_effect
