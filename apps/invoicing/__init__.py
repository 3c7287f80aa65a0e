"""An invoicing service and its worker: invoices, their PDFs, their mails, and what is billed every month."""
