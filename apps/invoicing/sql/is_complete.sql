-- The last thing that schema.sql makes; whoever adds to that file looks for the new one here.
SELECT to_regclass('platform.document') IS NOT NULL;
