-- As any program in any language does it. $1 kind, $2 payload, $3 id
SELECT id FROM holdfast.enqueue($1, $2::json, job_id => $3)
