SELECT to_regclass('passports.audit_events') IS NOT NULL
