-- Enqueue as a program in any language would. $1 kind, $2 payload, $3 id
SELECT id FROM holdfast.enqueue($1, $2::json, job_id => $3)
