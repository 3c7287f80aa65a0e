-- What the latest passes of maintenance could not do, and why.
SELECT chore, trouble FROM holdfast.maintenance WHERE trouble IS NOT NULL ORDER BY chore
