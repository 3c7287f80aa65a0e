-- Whether the schema has a migrator's tables. Without the second, it was created before the first release.
SELECT to_regclass('holdfast.migration') IS NOT NULL AS has_migrations,
       to_regclass('holdfast.installed_function') IS NOT NULL AS has_functions
