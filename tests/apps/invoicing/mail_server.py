"""An SMTP server for one test."""

import asyncio
import email
import email.policy
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from email.message import EmailMessage

from aiosmtpd.smtp import SMTP, Envelope, Session


@dataclass
class MailServer:
    """Keeps the mails that it accepts. While `refuse` is set, every recipient is answered with it."""

    url: str = ""
    refuse: str | None = None
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    """If not set, mails wait for it before they are accepted."""
    accept_and_hold: bool = False
    """Mails are accepted, but the answer to the sender is held back."""
    at_once: int = 0
    most_at_once: int = 0
    mails: list[EmailMessage] = field(default_factory=list)

    @property
    def message_ids(self) -> list[str]:
        return [str(mail["Message-ID"]) for mail in self.mails]

    async def handle_RCPT(  # noqa: N802 - the name is aiosmtpd's
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.refuse is not None:
            return self.refuse
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802
        assert isinstance(envelope.content, bytes)
        mail = email.message_from_bytes(envelope.content, _class=EmailMessage, policy=email.policy.default)
        if self.accept_and_hold:
            self.mails.append(mail)
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            await self.hold.wait()
        finally:
            self.at_once -= 1
        if not self.accept_and_hold:
            self.mails.append(mail)
        return "250 OK"


@dataclass
class CurtServer:
    """`url` contains a user and a password; `heard` has every line received, except the lines of mails."""

    url: str
    heard: list[str] = field(default_factory=list)


@asynccontextmanager
async def curt_server(**replies: str) -> AsyncIterator[CurtServer]:
    """A server that answers the given commands (including `greeting`) with `replies`, and all others with 250."""

    heard: list[str] = []
    serving: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving.append(asyncio.current_task())
        said = {"EHLO": "250-here\r\n250 AUTH PLAIN", "AUTH": "235 welcome", "DATA": "354 go on", **replies}
        writer.write(f"{said.get('greeting', '220 here')}\r\n".encode())
        with suppress(ConnectionError):
            while line := await reader.readline():
                heard.append(line.decode().strip())
                command = line.split()[0].decode().upper()
                if command == "DATA" and said["DATA"].startswith("354"):
                    writer.write(b"354 go on\r\n")
                    await reader.readuntil(b"\r\n.\r\n")
                    command = "content"
                writer.write(f"{said.get(command, '250 OK')}\r\n".encode())
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield CurtServer(f"smtp://ann:secret@127.0.0.1:{server.sockets[0].getsockname()[1]}", heard)
    finally:
        server.close()
        await asyncio.gather(*filter(None, serving))
        await server.wait_closed()


@asynccontextmanager
async def mail_server() -> AsyncIterator[MailServer]:
    kept = MailServer()
    kept.hold.set()
    loop = asyncio.get_running_loop()
    listening = await loop.create_server(lambda: SMTP(kept, loop=loop), "127.0.0.1", 0)
    try:
        kept.url = f"smtp://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        yield kept
    finally:
        kept.hold.set()
        listening.close()
        await listening.wait_closed()
