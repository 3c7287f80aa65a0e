SELECT FROM holdfast.schedule WHERE name = $1 FOR UPDATE
