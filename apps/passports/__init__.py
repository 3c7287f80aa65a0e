"""Battery passports for many tenants, compiled, signed, labeled and announced by background jobs on Holdfast."""
