SELECT FROM holdfast.lease WHERE id = $1 FOR UPDATE
