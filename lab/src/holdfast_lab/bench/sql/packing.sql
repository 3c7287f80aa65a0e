-- Where rows are packed for COPY beforehand: tables of the session, of which nothing is logged.
CREATE TEMPORARY TABLE packing_job (LIKE holdfast.job INCLUDING DEFAULTS INCLUDING GENERATED);
CREATE TEMPORARY TABLE packing_ready (LIKE holdfast.ready INCLUDING DEFAULTS INCLUDING GENERATED)
