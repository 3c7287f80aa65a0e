-- The last thing that schema.sql has come to make; whoever adds to that file looks for the new one here.
SELECT to_regclass('invoicing.delivery_of_invoice') IS NOT NULL;
