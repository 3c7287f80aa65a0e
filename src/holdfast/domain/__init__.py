"""The rules without any input or output: jobs, outcomes, retries, timetables, errors."""
