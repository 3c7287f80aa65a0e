-- Whether the schema has the tables of a migrator; without the second it is of a time before the first release.
SELECT to_regclass('holdfast.migration') IS NOT NULL AS has_migrations,
       to_regclass('holdfast.installed_function') IS NOT NULL AS has_functions
