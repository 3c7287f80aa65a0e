-- Executed by the first process that starts and finds part of it missing.
CREATE SCHEMA IF NOT EXISTS invoicing;
CREATE SCHEMA IF NOT EXISTS platform;

CREATE TABLE IF NOT EXISTS invoicing.customer (
    id uuid PRIMARY KEY,
    name text NOT NULL,
    email text NOT NULL,
    address text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now()
);

-- Billed on the first of each month, for the month that begins.
CREATE TABLE IF NOT EXISTS invoicing.enrolment (
    id uuid PRIMARY KEY,
    customer_id uuid NOT NULL REFERENCES invoicing.customer,
    class_name text NOT NULL,
    student text NOT NULL,
    monthly_price numeric(14, 2) NOT NULL CHECK (monthly_price > 0),
    currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    tax_rate numeric(5, 2) NOT NULL CHECK (tax_rate BETWEEN 0 AND 100),
    first_month date NOT NULL CHECK (extract(day FROM first_month) = 1),
    last_month date CHECK (last_month >= first_month AND extract(day FROM last_month) = 1)
);

-- The last number given in each year: numbers have no gaps.
CREATE TABLE IF NOT EXISTS invoicing.number_series (
    year int PRIMARY KEY,
    last int NOT NULL
);

CREATE TABLE IF NOT EXISTS invoicing.invoice (
    id uuid PRIMARY KEY,
    number text UNIQUE,
    customer_id uuid NOT NULL REFERENCES invoicing.customer,
    status text NOT NULL DEFAULT 'DRAFT' CHECK (status IN ('DRAFT', 'ISSUED', 'PAID')),
    currency text NOT NULL CHECK (currency ~ '^[A-Z]{3}$'),
    template text NOT NULL DEFAULT 'invoice',
    due_days int NOT NULL DEFAULT 14 CHECK (due_days BETWEEN 0 AND 365),
    issued_on date,
    due_on date,
    net numeric(14, 2) NOT NULL,
    tax numeric(14, 2) NOT NULL,
    total numeric(14, 2) NOT NULL CHECK (total = net + tax),
    note text NOT NULL DEFAULT '',
    created_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((status = 'DRAFT') = (number IS NULL)),
    CHECK ((number IS NULL) = (issued_on IS NULL) AND (number IS NULL) = (due_on IS NULL))
);
CREATE INDEX IF NOT EXISTS invoice_open ON invoicing.invoice (due_on) WHERE status = 'ISSUED';
CREATE INDEX IF NOT EXISTS invoice_newest ON invoicing.invoice (created_at, id);

CREATE TABLE IF NOT EXISTS invoicing.invoice_line (
    invoice_id uuid NOT NULL REFERENCES invoicing.invoice,
    position int NOT NULL,
    description text NOT NULL,
    quantity numeric(12, 3) NOT NULL CHECK (quantity > 0),
    unit_price numeric(14, 2) NOT NULL,
    tax_rate numeric(5, 2) NOT NULL CHECK (tax_rate BETWEEN 0 AND 100),
    net numeric(14, 2) NOT NULL,
    PRIMARY KEY (invoice_id, position)
);

-- The one bill of an enrollment for a month.
CREATE TABLE IF NOT EXISTS invoicing.class_bill (
    enrolment_id uuid NOT NULL REFERENCES invoicing.enrolment,
    month date NOT NULL,
    invoice_id uuid NOT NULL UNIQUE REFERENCES invoicing.invoice,
    PRIMARY KEY (enrolment_id, month)
);

CREATE TABLE IF NOT EXISTS invoicing.email_delivery (
    id uuid PRIMARY KEY,
    invoice_id uuid NOT NULL REFERENCES invoicing.invoice,
    purpose text NOT NULL CHECK (purpose IN ('invoice', 'reminder')),
    idempotency_key text NOT NULL UNIQUE,
    recipient text NOT NULL,
    status text NOT NULL DEFAULT 'PENDING' CHECK (status IN ('PENDING', 'SENT', 'FAILED')),
    message_id text NOT NULL UNIQUE,
    job_id uuid,
    error_code text,
    created_at timestamptz NOT NULL DEFAULT now(),
    sent_at timestamptz,
    CHECK ((status = 'SENT') = (sent_at IS NOT NULL))
);
CREATE INDEX IF NOT EXISTS delivery_of_invoice ON invoicing.email_delivery (invoice_id, created_at);

-- An invoice gets at most one reminder of each level.
CREATE TABLE IF NOT EXISTS invoicing.reminder (
    invoice_id uuid NOT NULL REFERENCES invoicing.invoice,
    level int NOT NULL,
    delivery_id uuid NOT NULL UNIQUE REFERENCES invoicing.email_delivery,
    created_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (invoice_id, level)
);

-- The tax owed when the invoice was issued, by rate. The handler upserts by this natural key.
CREATE TABLE IF NOT EXISTS invoicing.tax_snapshot (
    invoice_id uuid NOT NULL REFERENCES invoicing.invoice,
    tax_rate numeric(5, 2) NOT NULL,
    currency text NOT NULL,
    net numeric(14, 2) NOT NULL,
    tax numeric(14, 2) NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (invoice_id, tax_rate)
);

CREATE TABLE IF NOT EXISTS platform.file (
    id uuid PRIMARY KEY,
    state text NOT NULL DEFAULT 'PENDING' CHECK (state IN ('PENDING', 'READY', 'FAILED')),
    storage_key text NOT NULL UNIQUE,
    content_type text NOT NULL,
    bytes bigint,
    sha256 text,
    updated_at timestamptz NOT NULL DEFAULT now(),
    CHECK ((state = 'READY') = (bytes IS NOT NULL) AND (state = 'READY') = (sha256 IS NOT NULL))
);

CREATE TABLE IF NOT EXISTS platform.document (
    id uuid PRIMARY KEY,
    kind text NOT NULL,
    subject_id uuid NOT NULL,
    file_id uuid NOT NULL UNIQUE REFERENCES platform.file,
    state text NOT NULL DEFAULT 'PENDING' CHECK (state IN ('PENDING', 'READY', 'FAILED')),
    job_id uuid,
    error_code text,
    error_message text,
    updated_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (kind, subject_id),
    CHECK ((state = 'FAILED') = (error_code IS NOT NULL))
);
