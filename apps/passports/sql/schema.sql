-- The application's own schema. Executed by the first process that starts and does not find it.
--
-- A document has versions. Parsing a version yields facts; equal facts are stored once per tenant. A snapshot selects
-- document versions. Sealing it fixes what it selects, and leads to a passport version: facts + published rules,
-- compiled, then signed, then labeled. Every effect writes an audit event, and events that an endpoint subscribed to
-- become webhook deliveries.
--
-- Every table has the tenant, and every reference includes it, so no row can refer to a row of another tenant.
CREATE SCHEMA passports;

-- Status changes are given as pairs, such as 'OPEN>SEALED'.
CREATE FUNCTION passports.check_status_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NOT (OLD.status || '>' || NEW.status) = ANY (TG_ARGV) THEN
        RAISE EXCEPTION '% cannot change from % to %', TG_TABLE_NAME, OLD.status, NEW.status
            USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
    END IF;
    RETURN NEW;
END $$;

CREATE FUNCTION passports.check_first_status() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% cannot begin as %', TG_TABLE_NAME, NEW.status
        USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
END $$;

CREATE FUNCTION passports.reject_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION '% cannot be changed: % is refused', TG_TABLE_NAME, TG_OP
        USING ERRCODE = 'restrict_violation', CONSTRAINT = TG_NAME;
END $$;

CREATE TABLE passports.tenants (
    tenant_id uuid PRIMARY KEY,
    name text NOT NULL CHECK (name <> ''),
    token_hash bytea NOT NULL UNIQUE CHECK (octet_length(token_hash) = 32),
    -- The number of the tenant's newest audit event. Taken in the event's transaction, so numbers have no gaps.
    audit_number bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE passports.documents (
    document_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL REFERENCES passports.tenants,
    name text NOT NULL CHECK (name <> ''),
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, document_id)
);

CREATE TABLE passports.document_versions (
    document_version_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    document_id uuid NOT NULL,
    version int NOT NULL CHECK (version > 0),
    media_type text NOT NULL CHECK (media_type IN ('application/json', 'text/csv')),
    content bytea NOT NULL,
    content_hash bytea NOT NULL CHECK (content_hash = sha256(content)),
    status text NOT NULL DEFAULT 'UPLOADED' CHECK (status IN ('UPLOADED', 'PARSED')),
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, document_version_id),
    UNIQUE (tenant_id, document_id, version),
    FOREIGN KEY (tenant_id, document_id) REFERENCES passports.documents (tenant_id, document_id)
);

CREATE TABLE passports.facts (
    fact_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL REFERENCES passports.tenants,
    fact_type text NOT NULL CHECK (fact_type IN ('attribute', 'component')),
    fact_key text NOT NULL CHECK (fact_key <> ''),
    schema_version int NOT NULL CHECK (schema_version > 0),
    payload jsonb NOT NULL,
    -- SHA-256 of the payload's canonical JSON.
    payload_hash bytea NOT NULL CHECK (octet_length(payload_hash) = 32),
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, fact_id),
    UNIQUE (tenant_id, fact_type, fact_key, schema_version, payload_hash)
);

-- The facts of a parsed document version.
CREATE TABLE passports.document_facts (
    tenant_id uuid NOT NULL,
    document_version_id uuid NOT NULL,
    fact_id uuid NOT NULL,
    PRIMARY KEY (tenant_id, document_version_id, fact_id),
    FOREIGN KEY (tenant_id, document_version_id)
        REFERENCES passports.document_versions (tenant_id, document_version_id),
    FOREIGN KEY (tenant_id, fact_id) REFERENCES passports.facts (tenant_id, fact_id)
);

CREATE TABLE passports.snapshots (
    snapshot_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL REFERENCES passports.tenants,
    status text NOT NULL DEFAULT 'OPEN' CHECK (status IN ('OPEN', 'SEALED')),
    created_at timestamptz NOT NULL DEFAULT now(),
    sealed_at timestamptz,
    UNIQUE (tenant_id, snapshot_id),
    CHECK ((status = 'SEALED') = (sealed_at IS NOT NULL))
);

CREATE TABLE passports.snapshot_documents (
    tenant_id uuid NOT NULL,
    snapshot_id uuid NOT NULL,
    document_version_id uuid NOT NULL,
    PRIMARY KEY (tenant_id, snapshot_id, document_version_id),
    FOREIGN KEY (tenant_id, snapshot_id) REFERENCES passports.snapshots (tenant_id, snapshot_id),
    FOREIGN KEY (tenant_id, document_version_id)
        REFERENCES passports.document_versions (tenant_id, document_version_id)
);

CREATE TABLE passports.rule_packages (
    rules_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL REFERENCES passports.tenants,
    name text NOT NULL CHECK (name <> ''),
    source text NOT NULL,
    status text NOT NULL DEFAULT 'DRAFT' CHECK (status IN ('DRAFT', 'PUBLISHED')),
    created_at timestamptz NOT NULL DEFAULT now(),
    published_at timestamptz,
    UNIQUE (tenant_id, rules_id),
    CHECK ((status = 'PUBLISHED') = (published_at IS NOT NULL))
);

CREATE TABLE passports.passports (
    passport_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL REFERENCES passports.tenants,
    name text NOT NULL CHECK (name <> ''),
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, passport_id)
);

CREATE TABLE passports.passport_versions (
    passport_version_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    passport_id uuid NOT NULL,
    snapshot_id uuid NOT NULL,
    rules_id uuid NOT NULL,
    build_id text NOT NULL CHECK (build_id <> ''),
    issued_at timestamptz NOT NULL,
    status text NOT NULL DEFAULT 'COMPILED' CHECK (status IN ('COMPILED', 'SIGNED', 'LABELED')),
    -- Canonical JSON, byte for byte as it was hashed.
    payload bytea NOT NULL,
    payload_hash bytea NOT NULL CHECK (octet_length(payload_hash) = 32),
    proof_root_hash bytea NOT NULL CHECK (octet_length(proof_root_hash) = 32),
    receipt bytea NOT NULL,
    receipt_hash bytea NOT NULL CHECK (octet_length(receipt_hash) = 32),
    signature bytea CHECK (octet_length(signature) = 64),
    key_id text,
    qr_payload text,
    qr_png bytea,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, passport_version_id),
    UNIQUE (tenant_id, passport_id, snapshot_id, rules_id, build_id, issued_at),
    FOREIGN KEY (tenant_id, passport_id) REFERENCES passports.passports (tenant_id, passport_id),
    FOREIGN KEY (tenant_id, snapshot_id) REFERENCES passports.snapshots (tenant_id, snapshot_id),
    FOREIGN KEY (tenant_id, rules_id) REFERENCES passports.rule_packages (tenant_id, rules_id),
    CHECK ((status = 'COMPILED') = (signature IS NULL) AND (signature IS NULL) = (key_id IS NULL)),
    CHECK ((status = 'LABELED') = (qr_payload IS NOT NULL) AND (qr_payload IS NULL) = (qr_png IS NULL))
);

CREATE TABLE passports.audit_events (
    tenant_id uuid NOT NULL REFERENCES passports.tenants,
    number bigint NOT NULL CHECK (number > 0),
    -- Follows from tenant, type, aggregate and effect, so the same effect cannot be recorded twice.
    event_id uuid NOT NULL UNIQUE,
    event_type text NOT NULL CHECK (event_type <> ''),
    aggregate_type text NOT NULL CHECK (aggregate_type <> ''),
    aggregate_id uuid NOT NULL,
    occurred_at timestamptz NOT NULL DEFAULT now(),
    -- Not jsonb, which would sort the fields of the webhooks.
    payload json NOT NULL,
    PRIMARY KEY (tenant_id, number),
    UNIQUE (tenant_id, event_id)
);
CREATE INDEX audit_events_of_aggregate ON passports.audit_events (tenant_id, aggregate_id);

CREATE TABLE passports.webhook_endpoints (
    webhook_endpoint_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL REFERENCES passports.tenants,
    url text NOT NULL CHECK (url ~ '^https?://'),
    secret text NOT NULL CHECK (secret <> ''),
    -- Set during a rotation: signs in addition to `secret`, until it replaces it.
    next_secret text CHECK (next_secret <> ''),
    -- Set for good: nothing more is sent there.
    disabled_at timestamptz,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, webhook_endpoint_id)
);

CREATE TABLE passports.webhook_subscriptions (
    webhook_subscription_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    webhook_endpoint_id uuid NOT NULL,
    event_type text NOT NULL CHECK (event_type <> ''),
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, webhook_endpoint_id, event_type),
    FOREIGN KEY (tenant_id, webhook_endpoint_id)
        REFERENCES passports.webhook_endpoints (tenant_id, webhook_endpoint_id)
);
CREATE INDEX webhook_subscriptions_of_type ON passports.webhook_subscriptions (tenant_id, event_type);

CREATE TABLE passports.webhook_deliveries (
    webhook_delivery_id uuid PRIMARY KEY,
    tenant_id uuid NOT NULL,
    webhook_endpoint_id uuid NOT NULL,
    event_id uuid NOT NULL,
    status text NOT NULL CHECK (status IN ('PENDING', 'DELIVERED', 'FAILED')),
    http_status int NULL,
    response_headers jsonb NULL,
    response_body bytea NULL,
    delivered_at timestamptz NULL,
    error_message text NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    UNIQUE (tenant_id, webhook_endpoint_id, event_id),
    FOREIGN KEY (tenant_id, webhook_endpoint_id)
        REFERENCES passports.webhook_endpoints (tenant_id, webhook_endpoint_id),
    FOREIGN KEY (tenant_id, event_id) REFERENCES passports.audit_events (tenant_id, event_id),
    CHECK ((status = 'DELIVERED') = (delivered_at IS NOT NULL))
);

CREATE INDEX documents_newest ON passports.documents (tenant_id, created_at, document_id);
CREATE INDEX snapshots_newest ON passports.snapshots (tenant_id, created_at, snapshot_id);
CREATE INDEX rule_packages_newest ON passports.rule_packages (tenant_id, created_at, rules_id);
CREATE INDEX passports_newest ON passports.passports (tenant_id, created_at, passport_id);
CREATE INDEX passport_versions_newest
    ON passports.passport_versions (tenant_id, passport_id, created_at, passport_version_id);
CREATE INDEX webhook_endpoints_newest ON passports.webhook_endpoints (tenant_id, created_at, webhook_endpoint_id);
CREATE INDEX webhook_deliveries_newest ON passports.webhook_deliveries (tenant_id, created_at, webhook_delivery_id);
CREATE INDEX webhook_deliveries_pending ON passports.webhook_deliveries (created_at, webhook_delivery_id)
    WHERE status = 'PENDING';

CREATE TRIGGER first_status BEFORE INSERT ON passports.document_versions
    FOR EACH ROW WHEN (NEW.status <> 'UPLOADED') EXECUTE FUNCTION passports.check_first_status();
CREATE TRIGGER status_change BEFORE UPDATE ON passports.document_versions
    FOR EACH ROW WHEN (OLD.status <> NEW.status)
    EXECUTE FUNCTION passports.check_status_change('UPLOADED>PARSED');
CREATE TRIGGER first_status BEFORE INSERT ON passports.snapshots
    FOR EACH ROW WHEN (NEW.status <> 'OPEN') EXECUTE FUNCTION passports.check_first_status();
CREATE TRIGGER status_change BEFORE UPDATE ON passports.snapshots
    FOR EACH ROW WHEN (OLD.status <> NEW.status)
    EXECUTE FUNCTION passports.check_status_change('OPEN>SEALED');
CREATE TRIGGER first_status BEFORE INSERT ON passports.rule_packages
    FOR EACH ROW WHEN (NEW.status <> 'DRAFT') EXECUTE FUNCTION passports.check_first_status();
CREATE TRIGGER status_change BEFORE UPDATE ON passports.rule_packages
    FOR EACH ROW WHEN (OLD.status <> NEW.status)
    EXECUTE FUNCTION passports.check_status_change('DRAFT>PUBLISHED');
CREATE TRIGGER first_status BEFORE INSERT ON passports.passport_versions
    FOR EACH ROW WHEN (NEW.status <> 'COMPILED') EXECUTE FUNCTION passports.check_first_status();
CREATE TRIGGER status_change BEFORE UPDATE ON passports.passport_versions
    FOR EACH ROW WHEN (OLD.status <> NEW.status)
    EXECUTE FUNCTION passports.check_status_change('COMPILED>SIGNED', 'SIGNED>LABELED');
CREATE TRIGGER first_status BEFORE INSERT ON passports.webhook_deliveries
    FOR EACH ROW WHEN (NEW.status <> 'PENDING') EXECUTE FUNCTION passports.check_first_status();
-- Back to PENDING is a redelivery.
CREATE TRIGGER status_change BEFORE UPDATE ON passports.webhook_deliveries
    FOR EACH ROW WHEN (OLD.status <> NEW.status)
    EXECUTE FUNCTION passports.check_status_change(
        'PENDING>DELIVERED', 'PENDING>FAILED', 'DELIVERED>PENDING', 'FAILED>PENDING'
    );

-- What a passport was made of stays as it was.
CREATE TRIGGER content_is_fixed BEFORE UPDATE ON passports.document_versions FOR EACH ROW
    WHEN ((OLD.document_version_id, OLD.tenant_id, OLD.document_id, OLD.version, OLD.media_type, OLD.content)
        IS DISTINCT FROM
        (NEW.document_version_id, NEW.tenant_id, NEW.document_id, NEW.version, NEW.media_type, NEW.content))
    EXECUTE FUNCTION passports.reject_change();
CREATE TRIGGER content_is_fixed BEFORE UPDATE ON passports.rule_packages FOR EACH ROW
    WHEN (OLD.status = 'PUBLISHED') EXECUTE FUNCTION passports.reject_change();
CREATE TRIGGER content_is_fixed BEFORE UPDATE ON passports.passport_versions FOR EACH ROW
    WHEN (
        OLD.status = 'LABELED'
        OR (OLD.passport_version_id, OLD.tenant_id, OLD.passport_id, OLD.snapshot_id, OLD.rules_id, OLD.build_id,
            OLD.issued_at, OLD.payload, OLD.payload_hash, OLD.proof_root_hash, OLD.receipt, OLD.receipt_hash)
        IS DISTINCT FROM
        (NEW.passport_version_id, NEW.tenant_id, NEW.passport_id, NEW.snapshot_id, NEW.rules_id, NEW.build_id,
            NEW.issued_at, NEW.payload, NEW.payload_hash, NEW.proof_root_hash, NEW.receipt, NEW.receipt_hash)
        OR (OLD.signature IS NOT NULL
            AND (OLD.signature, OLD.key_id) IS DISTINCT FROM (NEW.signature, NEW.key_id))
    )
    EXECUTE FUNCTION passports.reject_change();
CREATE TRIGGER is_kept BEFORE DELETE ON passports.passport_versions
    FOR EACH ROW EXECUTE FUNCTION passports.reject_change();
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON passports.document_facts
    FOR EACH ROW EXECUTE FUNCTION passports.reject_change();
CREATE TRIGGER content_is_fixed BEFORE UPDATE ON passports.facts
    FOR EACH ROW EXECUTE FUNCTION passports.reject_change();
CREATE FUNCTION passports.check_snapshot_is_open() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed passports.snapshot_documents := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    -- The lock keeps the snapshot from being sealed until this transaction ends.
    PERFORM FROM passports.snapshots
        WHERE tenant_id = changed.tenant_id AND snapshot_id = changed.snapshot_id AND status = 'OPEN' FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'snapshot % is not open', changed.snapshot_id
            USING ERRCODE = 'restrict_violation', CONSTRAINT = TG_NAME;
    END IF;
    RETURN changed;
END $$;
CREATE TRIGGER snapshot_is_open BEFORE INSERT OR DELETE ON passports.snapshot_documents
    FOR EACH ROW EXECUTE FUNCTION passports.check_snapshot_is_open();
CREATE TRIGGER content_is_fixed BEFORE UPDATE ON passports.snapshot_documents
    FOR EACH ROW EXECUTE FUNCTION passports.reject_change();

CREATE TRIGGER append_only BEFORE UPDATE OR DELETE OR TRUNCATE ON passports.audit_events
    FOR EACH STATEMENT EXECUTE FUNCTION passports.reject_change();
CREATE FUNCTION passports.check_number() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.number <> 1 + coalesce(
        (SELECT max(number) FROM passports.audit_events WHERE tenant_id = NEW.tenant_id), 0
    ) THEN
        RAISE EXCEPTION '% is not the next number of the audit trail', NEW.number
            USING ERRCODE = 'check_violation', CONSTRAINT = TG_NAME;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER number_is_next BEFORE INSERT ON passports.audit_events
    FOR EACH ROW EXECUTE FUNCTION passports.check_number();
