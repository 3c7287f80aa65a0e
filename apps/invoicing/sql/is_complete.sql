-- Looks for the newest object of schema.sql. If you add to that file, look for the new object here.
SELECT to_regclass('invoicing.delivery_of_invoice') IS NOT NULL;
