SELECT EXISTS (SELECT FROM holdfast.ready) OR EXISTS (SELECT FROM holdfast.lease)
