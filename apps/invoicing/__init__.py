"""An invoicing service and its worker: invoices, PDFs, emails, and monthly billing."""
