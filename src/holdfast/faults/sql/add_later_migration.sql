-- As a later release would leave it.
INSERT INTO holdfast.migration (version, name) SELECT max(version) + 1, 'of_a_later_release' FROM holdfast.migration
