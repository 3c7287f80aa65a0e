"""One module per kind of job. Each handler writes its effect, its audit event and the next job in the transaction that
finishes its own job, so a crash leaves all of it or nothing. A second run finds the effect and adds nothing.
"""
