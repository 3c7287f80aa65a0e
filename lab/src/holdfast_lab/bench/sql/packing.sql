-- Temporary tables in which rows are packed for COPY beforehand; they write no WAL.
CREATE TEMPORARY TABLE packing_job (LIKE holdfast.job INCLUDING DEFAULTS INCLUDING GENERATED);
CREATE TEMPORARY TABLE packing_ready (LIKE holdfast.ready INCLUDING DEFAULTS INCLUDING GENERATED)
