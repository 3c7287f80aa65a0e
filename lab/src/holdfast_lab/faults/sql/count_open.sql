SELECT (SELECT count(*) FROM holdfast.ready WHERE kind <> ALL ($1::text[]))
     + (SELECT count(*) FROM holdfast.lease WHERE kind <> ALL ($1::text[]))
