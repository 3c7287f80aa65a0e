"""What the mails say, and which answers of a mail server are final."""

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from email.message import EmailMessage

import pytest

from apps.invoicing.mail import InvoiceMail, MailDeferred, Mailer, MailRefused, MailServerRefused, compose
from apps.invoicing.settings import Misconfigured
from tests.apps.invoicing.mail_server import curt_server, mail_server

SENDER = "Corely Billing <billing@corely.example>"
PDF = b"%PDF-1.7 a page"
MAIL = InvoiceMail(
    message_id="<1@corely.example>",
    recipient="accounts@example.com",
    reminder_level=0,
    reminders_before=0,
    created_at=datetime(2026, 11, 16, 9, tzinfo=UTC),
    customer_name="Møller & Søn <b>",
    number="2026-00017",
    issued_on=date(2026, 11, 16),
    due_on=date(2026, 11, 30),
    total=Decimal("1876.83"),
    currency="EUR",
)


def body(message: EmailMessage, kind: str) -> str:
    part = message.get_body((kind,))
    assert part is not None
    return str(part.get_content())


def test_a_mail_has_a_plain_and_an_html_body_and_the_pdf() -> None:
    message = compose(MAIL, SENDER, PDF)
    assert (message["From"], message["To"]) == (SENDER, MAIL.recipient)
    assert (message["Subject"], message["Message-ID"]) == ("Invoice 2026-00017", MAIL.message_id)
    for text in (
        "Dear Møller & Søn <b>,\n\nPlease find attached",
        "invoice 2026-00017 of 16 November 2026 for 1,876.83 EUR",
        "30 November 2026",
        "Corely Billing",
    ):
        assert text in body(message, "plain")
    assert "<p>Dear Møller &amp; Søn &lt;b&gt;,</p>" in body(message, "html")
    (attached,) = message.iter_attachments()
    assert attached.get_filename() == "2026-00017.pdf"
    assert (attached.get_content_type(), attached.get_content()) == ("application/pdf", PDF)


def reminder(level: int, before: int) -> EmailMessage:
    return compose(replace(MAIL, reminder_level=level, reminders_before=before), SENDER, PDF)


def test_each_reminder_level_has_different_wording() -> None:
    messages = [compose(MAIL, SENDER, PDF), *(reminder(level, level - 1) for level in (1, 2, 3))]
    openings = [str(message["Subject"]).partition(":")[0] for message in messages]
    assert openings == ["Invoice 2026-00017", "Reminder", "Second reminder", "Final reminder"]
    assert len({body(message, "plain") for message in messages}) == 4
    assert all("for 1,876.83 EUR" in body(message, "plain") for message in messages)
    assert "If you have paid" not in body(messages[0], "plain")
    assert all("If you have paid" in body(message, "plain") for message in messages[1:])


def test_the_text_after_the_salutation_begins_with_a_capital_letter() -> None:
    for level in range(4):
        for before in range(3):
            _, text, *_ = body(reminder(level, before), "plain").split("\n\n")
            assert text[0].isupper(), text


def test_a_name_cannot_reverse_the_text_after_it() -> None:
    message = compose(replace(MAIL, customer_name="Ann \u202egro.live\u2067"), SENDER, PDF)
    for kind in ("plain", "html"):
        assert "Dear Ann gro.live," in body(message, kind)


def test_a_reminder_mentions_only_earlier_reminders_that_exist() -> None:
    for level in (1, 2, 3):
        first = body(reminder(level, 0), "plain")
        assert str(reminder(level, 0)["Subject"]).startswith("Reminder: ")
        assert not [claim for claim in ("we wrote", "despite", "last one") if claim in first]
    assert "despite a reminder." in body(reminder(3, 1), "plain")
    assert "despite two reminders." in body(reminder(3, 2), "plain")
    # The last level always announces what happens next, no matter how many reminders came before.
    assert ["within seven days" in body(reminder(3, before), "plain") for before in (0, 1, 2)] == [True] * 3
    assert "within seven days" not in body(reminder(2, 0), "plain")


def test_a_level_beyond_the_last_has_the_wording_of_the_last() -> None:
    assert body(reminder(3, 2), "plain") == body(reminder(9, 8), "plain")


def test_the_headers_are_the_same_for_every_attempt() -> None:
    first, second = (compose(MAIL, SENDER, PDF) for _ in range(2))
    assert first.items() == second.items()
    assert first["Date"].datetime == MAIL.created_at


def test_a_line_break_in_an_address_cannot_add_a_header() -> None:
    with pytest.raises(MailRefused):
        compose(replace(MAIL, recipient="a@example.com\nBcc: b@example.com"), SENDER, PDF)


async def test_an_accepted_mail_arrives_whole() -> None:
    async with mail_server() as server:
        await Mailer(server.url, SENDER).send(compose(MAIL, SENDER, PDF))
        (arrived,) = server.mails
    assert body(arrived, "plain").splitlines() == body(compose(MAIL, SENDER, PDF), "plain").splitlines()
    assert [part.get_content() for part in arrived.iter_attachments()] == [PDF]


@pytest.mark.parametrize(
    ("answer", "kind"), [("550 no such user", MailRefused), ("554 no", MailRefused), ("451 later", MailDeferred)]
)
async def test_5xx_is_final_and_4xx_is_not(answer: str, kind: type[Exception]) -> None:
    async with mail_server() as server:
        server.refuse = answer
        with pytest.raises(kind, match=answer):
            await Mailer(server.url, SENDER).send(compose(MAIL, SENDER, PDF))


@pytest.mark.parametrize(
    ("replies", "kind"),
    [
        ({}, None),
        ({"greeting": "554 5.3.2 system not accepting network messages"}, MailServerRefused),
        ({"greeting": "421 too busy"}, MailDeferred),
        ({"EHLO": "550 who are you", "HELO": "550 who are you"}, MailServerRefused),
        ({"EHLO": "250 here"}, MailServerRefused),
        ({"AUTH": "535 5.7.8 bad credentials"}, MailServerRefused),
        ({"AUTH": "454 4.7.0 ask later"}, MailDeferred),
        ({"MAIL": "530 5.7.0 authentication required"}, MailServerRefused),
        ({"MAIL": "553 5.7.1 not your address"}, MailServerRefused),
        ({"MAIL": "451 later"}, MailDeferred),
        # The size of the mail is sent along with the sender.
        ({"MAIL": "552 5.3.4 message too big"}, MailRefused),
        ({"RCPT": "530 5.7.0 must issue STARTTLS"}, MailServerRefused),
        ({"RCPT": "550 5.1.1 no such user"}, MailRefused),
        ({"RCPT": "450 greylisted"}, MailDeferred),
        ({"DATA": "554 5.7.1 no"}, MailRefused),
        ({"content": "554 5.7.1 that is spam"}, MailRefused),
        ({"content": "452 no room"}, MailDeferred),
    ],
)
async def test_only_errors_about_the_mail_itself_are_final(
    replies: dict[str, str], kind: type[Exception] | None
) -> None:
    """A wrong password fails every mail, and no mail once a person has corrected it."""
    async with curt_server(**replies) as server:
        sending = Mailer(server.url, SENDER, may_tell_password=True).send(compose(MAIL, SENDER, PDF))
        if kind is None:
            await sending
            return
        with pytest.raises((MailRefused, MailDeferred)) as raised:
            await sending
    assert raised.type is kind
    assert "secret" not in str(raised.value)
    (said,) = {*replies.values()}
    assert said.startswith("250") or said in str(raised.value)
    assert ("not about this mail" in str(raised.value)) == (kind is MailServerRefused and not said.startswith("250"))


async def test_a_password_is_never_sent_in_clear_text() -> None:
    async with curt_server() as server:
        with pytest.raises(MailServerRefused) as raised:
            await Mailer(server.url, SENDER).send(compose(MAIL, SENDER, PDF))
    assert not [line for line in server.heard if line.startswith(("AUTH", "MAIL"))]
    told = str(raised.value)
    assert "offers no STARTTLS: the password of SMTP_URL is not sent in clear text" in told
    assert "SMTP_PASSWORD_WITHOUT_TLS" in told
    assert "secret" not in told
    assert "\n" not in told


async def test_a_server_that_offers_tls_and_then_refuses_it_gets_no_password() -> None:
    offer = {"EHLO": "250-here\r\n250-STARTTLS\r\n250 AUTH PLAIN", "STARTTLS": "454 4.7.0 not now"}
    for may_tell_password in (False, True):
        async with curt_server(**offer) as server:
            with pytest.raises(MailDeferred, match="454"):
                await Mailer(server.url, SENDER, may_tell_password=may_tell_password).send(compose(MAIL, SENDER, PDF))
        assert not [line for line in server.heard if line.startswith("AUTH")]


async def test_without_a_password_no_tls_is_needed() -> None:
    async with curt_server() as server:
        await Mailer(server.url.replace("ann:secret@", ""), SENDER).send(compose(MAIL, SENDER, PDF))
    assert server.heard[-1] == "QUIT"


async def test_an_unreachable_server_is_tried_again() -> None:
    async with mail_server() as server:
        url = server.url
    with pytest.raises(MailDeferred, match="could not be reached"):
        await Mailer(url, SENDER).send(compose(MAIL, SENDER, PDF))


@pytest.mark.parametrize("url", ["http://host", "smtp://", "host:25", "smtp://host:port", "smtp://ann:25/x@host"])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(Misconfigured, match="SMTP_URL"):
        Mailer(url, SENDER)


def test_a_sender_without_an_address_is_refused() -> None:
    with pytest.raises(Misconfigured, match="MAIL_FROM"):
        Mailer("smtp://host", "Corely Billing")
