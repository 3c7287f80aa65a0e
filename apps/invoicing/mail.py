"""Emails with an invoice attached: their text, and their delivery to an SMTP server."""

import html
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from email.message import EmailMessage
from email.utils import format_datetime, parseaddr
from urllib.parse import unquote, urlsplit

import aiosmtplib

from apps.invoicing.rendering import amount, in_order, long_date
from apps.invoicing.settings import Misconfigured

_TIMEOUT_SECONDS = 30.0
_GOODBYE_SECONDS = 1.0
_FOR_GOOD, _TOO_LARGE = 500, 552
_ACCOUNT_CODES = (530, 534, 535, 538)
"""Replies that ask for another login or for TLS, at any stage."""
_PORTS = {"smtp": 25, "smtps": 465}
_NOT_IN_CLEAR = (
    "the password of SMTP_URL is not sent in clear text; write smtps://, or set SMTP_PASSWORD_WITHOUT_TLS=true for a "
    "relay that you trust, on a network that nobody can listen to"
)
_NO_ADDRESS = "SMTP_URL: write smtp://[user:password@]host:port, or smtps://…"


class MailRefused(Exception):
    """Refused for good: the server answered 5xx to the recipient or the content, or the message cannot be written."""


class MailDeferred(Exception):
    """Deferred: the server answered 4xx, or could not be reached."""


class MailServerRefused(MailDeferred):
    """Deferred: the server refuses any email from this sender. The account or the server has to be fixed."""


@dataclass(frozen=True, slots=True)
class InvoiceMail:
    message_id: str
    """From the delivery record and the same for every attempt, so a recipient can recognize a duplicate."""
    recipient: str
    reminder_level: int
    """0: the invoice itself. From 1: how many of its reminder dates have passed."""
    reminders_before: int
    """How many reminders were sent before this one. A level is skipped if the scheduler did not run in time."""
    created_at: datetime
    customer_name: str
    number: str
    issued_on: date
    due_on: date
    total: Decimal
    currency: str


_INVOICE = (
    "Invoice {number}",
    "Please find attached our invoice {number} of {issued_on} for {total}. It is due on {due_on}.",
)
_REMINDERS = (
    (
        "Reminder: invoice {number} is overdue",
        (
            "Our invoice {number} for {total} was due on {due_on}, and we have not received your payment yet. Perhaps "
            "it slipped your mind. The invoice is attached again."
        ),
    ),
    (
        "Second reminder: invoice {number} is overdue",
        (
            "We wrote to you about our invoice {number} for {total}, which was due on {due_on}. It is still unpaid. "
            "Please pay it within the next few days, or let us know if something is wrong with it."
        ),
    ),
)
"""Indexed by the number of reminders sent before."""
_LAST_LEVEL = 3
_FINAL_REMINDERS = (
    (
        "Reminder: invoice {number} is overdue",
        (
            "Our invoice {number} for {total} was due on {due_on}, and we have not received your payment yet. The "
            "invoice is attached again. If your payment does not arrive within seven days, we will have to take "
            "further steps."
        ),
    ),
    *(
        (
            "Final reminder: invoice {number}",
            (
                f"Our invoice {{number}} for {{total}} has been unpaid since {{due_on}}, despite {before}. This is the "
                "last one: if your payment does not arrive within seven days, we will have to take further steps."
            ),
        )
        for before in ("a reminder", "two reminders")
    ),
)
"""Reminders of the last level, after which none follows, indexed by the number of reminders sent before."""
_CLOSING = "If you have paid in the meantime, please disregard this email."


def compose(mail: InvoiceMail, sender: str, pdf: bytes) -> EmailMessage:
    """Write the message: the same headers and text for the same email. Raise MailRefused if an address, for example,
    makes that impossible."""
    subject, text = _wording(mail)
    values = {
        "number": mail.number,
        "issued_on": long_date(mail.issued_on),
        "due_on": long_date(mail.due_on),
        "total": f"{amount(mail.total)} {mail.currency}",
    }
    paragraphs = [f"Dear {in_order(mail.customer_name)},", text.format(**values)]
    if mail.reminder_level:
        paragraphs.append(_CLOSING)
    paragraphs.append(f"Kind regards\n{parseaddr(sender)[0] or sender}")
    message = EmailMessage()
    try:
        if "=?" in mail.recipient:
            raise ValueError("the address would be decoded to another one")
        message["From"] = sender
        message["To"] = mail.recipient
        message["Subject"] = subject.format(**values)
        message["Date"] = format_datetime(mail.created_at)
        message["Message-ID"] = mail.message_id
        # Keeps automatic out-of-office replies from coming back.
        message["Auto-Submitted"] = "auto-generated"
        message.set_content("\n\n".join(paragraphs) + "\n")
        message.add_alternative(_as_html(paragraphs), subtype="html")
        message.add_attachment(pdf, maintype="application", subtype="pdf", filename=f"{mail.number}.pdf")
    except ValueError as error:
        raise MailRefused(f"the message cannot be written: {error}") from error
    return message


def _wording(mail: InvoiceMail) -> tuple[str, str]:
    if not mail.reminder_level:
        return _INVOICE
    wordings = _REMINDERS if mail.reminder_level < _LAST_LEVEL else _FINAL_REMINDERS
    return wordings[min(mail.reminders_before, len(wordings) - 1)]


def _as_html(paragraphs: list[str]) -> str:
    body = "\n".join(f"<p>{html.escape(paragraph).replace(chr(10), '<br>')}</p>" for paragraph in paragraphs)
    style = "font-family: sans-serif; line-height: 1.5; color: #222222"
    return f'<!DOCTYPE html>\n<html lang="en">\n<body style="{style}">\n{body}\n</body>\n</html>\n'


class Mailer:
    def __init__(self, url: str, sender: str, *, may_tell_password: bool = False) -> None:
        """`url`: smtp://[user:password@]host:port, or smtps://… for TLS from the first byte.

        `may_tell_password`: log in without TLS if the server offers none, which exposes the password on the network.
        Otherwise such a server is refused.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS[parts.scheme]
        except (ValueError, KeyError):
            raise Misconfigured(_NO_ADDRESS) from None
        # An @ after the host: an unquoted / in a password, whose start would pass for a port and be shown.
        if parts.scheme not in _PORTS or not parts.hostname or "@" in f"{parts.path}{parts.query}{parts.fragment}":
            raise Misconfigured(_NO_ADDRESS)
        if "@" not in parseaddr(sender)[1]:
            raise Misconfigured("MAIL_FROM: write Name <address@host>")
        self.sender = sender
        self._host = parts.hostname
        self._port = port
        self._user = unquote(parts.username) if parts.username else None
        self._password = unquote(parts.password) if parts.password else None
        self._tls = parts.scheme == "smtps"
        # None: use STARTTLS if the server offers it. True: require it, or do not log in and send nothing.
        self._start_tls = True if self._user and not self._tls and not may_tell_password else None

    async def send(self, message: EmailMessage, on_accepted: Callable[[], object] = lambda: None) -> None:
        """Return when the server has accepted the message, whatever happens to the connection afterwards.

        `on_accepted` is called at that moment: even if this is stopped during the goodbye, the message has been sent.
        """
        client = aiosmtplib.SMTP(
            hostname=self._host,
            port=self._port,
            username=self._user,
            password=self._password,
            use_tls=self._tls,
            start_tls=self._start_tls,
            timeout=_TIMEOUT_SECONDS,
        )
        try:
            await self._connect(client)
            await client.send_message(message)
            on_accepted()
            with suppress(aiosmtplib.SMTPException, OSError):
                await client.quit(timeout=_GOODBYE_SECONDS)
        except aiosmtplib.SMTPRecipientsRefused as error:
            raise _refusal(error.recipients[0]) from error
        except aiosmtplib.SMTPResponseException as error:
            raise _refusal(error) from error
        except (aiosmtplib.SMTPNotSupported, ValueError) as error:
            raise MailRefused(f"the server cannot take it: {error}") from error
        except (aiosmtplib.SMTPException, OSError) as error:
            raise MailDeferred(f"{self._host}:{self._port} could not be reached: {error}") from error
        finally:
            # No goodbye if something went wrong: a handler that is stopped must not wait for a server that hangs.
            client.close()

    async def _connect(self, client: aiosmtplib.SMTP) -> None:
        """Connect with greeting, TLS and login. Failures here do not depend on the email."""
        try:
            await client.connect()
        except aiosmtplib.SMTPResponseException as error:
            raise _deferral(error) from error
        except OSError:
            raise
        except (aiosmtplib.SMTPException, ValueError) as error:
            server = f"{self._host}:{self._port}"
            if self._start_tls and "STARTTLS" in str(error):
                raise MailServerRefused(f"{server} offers no STARTTLS: {_NOT_IN_CLEAR}") from error
            raise MailServerRefused(f"{server} and SMTP_URL do not agree: {error}") from error


def _refusal(reply: aiosmtplib.SMTPResponseException) -> MailRefused | MailDeferred:
    of_mail = aiosmtplib.SMTPRecipientRefused | aiosmtplib.SMTPDataError
    # The size is sent along with the sender, so this code can also come as the reply to the sender.
    is_of_mail = isinstance(reply, of_mail) or reply.code == _TOO_LARGE
    if is_of_mail and reply.code >= _FOR_GOOD and reply.code not in _ACCOUNT_CODES:
        return MailRefused(f"the server answered {reply.code} {reply.message}")
    return _deferral(reply)


def _deferral(reply: aiosmtplib.SMTPResponseException) -> MailDeferred:
    said = f"the server answered {reply.code} {reply.message}"
    if reply.code < _FOR_GOOD:
        return MailDeferred(said)
    return MailServerRefused(f"{said}, which is about the account or the server and not about this mail")
