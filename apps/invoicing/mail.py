"""Mails with an invoice attached: what they say, and how they are handed to an SMTP server."""

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
"""Whenever they come, they ask for another login or for TLS."""
_PORTS = {"smtp": 25, "smtps": 465}
_NOT_IN_CLEAR = (
    "the password of SMTP_URL is not sent in clear text; write smtps://, or set SMTP_PASSWORD_WITHOUT_TLS=true for a "
    "relay that you trust and that nobody can listen to on the way"
)
_NO_ADDRESS = "SMTP_URL: write smtp://[user:password@]host:port, or smtps://…"


class MailRefused(Exception):
    """For good: the server said 5xx to the recipient or the content, or the message cannot be written."""


class MailDeferred(Exception):
    """For now: the server said 4xx, or could not be reached."""


class MailServerRefused(MailDeferred):
    """For now: the server will not have us, whatever we bring. That is mended where the account or the server is."""


@dataclass(frozen=True, slots=True)
class InvoiceMail:
    message_id: str
    """That of the delivery record, the same for every attempt: whoever gets the mail twice can tell."""
    recipient: str
    reminder_level: int
    """0: the invoice itself. From 1: how many of the days on which it is reminded of have come."""
    reminders_before: int
    """How many reminders were sent before this one: a level is passed over when nothing ran on its day."""
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
            "Our invoice {number} for {total} was due on {due_on}, and we have not seen your payment yet. Perhaps it "
            "has slipped your attention: the invoice is attached once more."
        ),
    ),
    (
        "Second reminder: invoice {number} is overdue",
        (
            "We wrote to you about our invoice {number} for {total}, which was due on {due_on}. It is still open. "
            "Please pay it within the next days, or tell us if something is wrong with it."
        ),
    ),
)
"""By how many were sent before."""
_LAST_LEVEL = 3
_FINAL_REMINDERS = (
    (
        "Reminder: invoice {number} is overdue",
        (
            "Our invoice {number} for {total} was due on {due_on}, and we have not seen your payment yet. The invoice "
            "is attached once more. If your payment does not arrive within seven days, we will have to take further "
            "steps."
        ),
    ),
    *(
        (
            "Final reminder: invoice {number}",
            (
                f"Our invoice {{number}} for {{total}} has been open since {{due_on}}, in spite of {before}. This is "
                "the last one: if your payment does not arrive within seven days, we will have to take further steps."
            ),
        )
        for before in ("a reminder", "two reminders")
    ),
)
"""Those of the last level, after which none follows, by how many were sent before."""
_CLOSING = "If you have paid in the meantime, please take no notice of this mail."


def compose(mail: InvoiceMail, sender: str, pdf: bytes) -> EmailMessage:
    """The same headers and words for the same mail. MailRefused if it cannot be written, as with such an address."""
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
        # Nobody's absence note need come back to us.
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

        `may_tell_password`: log in without TLS where the server has none, so that everybody on the way can read the
        password. Otherwise such a server is refused.
        """
        try:
            parts = urlsplit(url)
            port = parts.port or _PORTS[parts.scheme]
        except (ValueError, KeyError):
            raise Misconfigured(_NO_ADDRESS) from None
        if parts.scheme not in _PORTS or not parts.hostname:
            raise Misconfigured(_NO_ADDRESS)
        if "@" not in parseaddr(sender)[1]:
            raise Misconfigured("MAIL_FROM: write Name <address@host>")
        self.sender = sender
        self._host = parts.hostname
        self._port = port
        self._user = unquote(parts.username) if parts.username else None
        self._password = unquote(parts.password) if parts.password else None
        self._tls = parts.scheme == "smtps"
        # None: where it is offered. True: or there is no login, and no mail.
        self._start_tls = True if self._user and not self._tls and not may_tell_password else None

    async def send(self, message: EmailMessage, on_accepted: Callable[[], object] = lambda: None) -> None:
        """Returns when the server has accepted the message, whatever becomes of the connection afterwards.

        `on_accepted` is called at once: who is stopped during the goodbye has sent it all the same.
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
            # Without a goodbye if something went wrong: who is stopped must not wait for a server that hangs.
            client.close()

    async def _connect(self, client: aiosmtplib.SMTP) -> None:
        """Greeting, TLS and login: nothing of it has to do with a certain mail."""
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
    # Its size is told together with its sender.
    is_of_mail = isinstance(reply, of_mail) or reply.code == _TOO_LARGE
    if is_of_mail and reply.code >= _FOR_GOOD and reply.code not in _ACCOUNT_CODES:
        return MailRefused(f"the server said {reply.code} {reply.message}")
    return _deferral(reply)


def _deferral(reply: aiosmtplib.SMTPResponseException) -> MailDeferred:
    said = f"the server said {reply.code} {reply.message}"
    if reply.code < _FOR_GOOD:
        return MailDeferred(said)
    return MailServerRefused(f"{said}, which is about the account or the server and not about this mail")
