"""The page on which anyone can verify a passport or a webhook. Plain HTML: no scripts, nothing from elsewhere."""

import asyncio
import base64
import hashlib
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path

from fastapi import APIRouter, Request
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.responses import HTMLResponse

from apps.passports.api.service import TheService
from apps.passports.reading import Unreadable, read_qr
from apps.passports.settings import Settings
from apps.passports.tools import trusted_keys
from apps.passports.verdicts import (
    NEXT_SIGNATURE,
    SIGNATURE,
    Report,
    Result,
    passport_report,
    unreadable_photo,
    webhook_report,
)

PATH = "/verify"
_PHOTO_BYTES = 8 * 1024 * 1024
_MOST_FIELDS = 20
_MARKS = {Result.OK: "✓", Result.WRONG: "✗", Result.UNCHECKED: "–"}

router = APIRouter(include_in_schema=False)

_folder = Path(__file__).parent / "templates"
_style = (_folder / "verify.css").read_text(encoding="utf-8")
_environment = Environment(
    loader=FileSystemLoader(_folder), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_style_hash = base64.b64encode(hashlib.sha256(_style.encode()).digest()).decode()
_HEADERS = {
    "Content-Security-Policy": f"default-src 'none'; style-src 'sha256-{_style_hash}'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


class _Unusable(Exception):
    """The form is not complete; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class _Form:
    """What was sent, to be shown again. The secret of a webhook is not."""

    what: str = "passport"
    texts: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)

    def text(self, name: str) -> str:
        return self.texts.get(name, "").strip()


def most_bytes(settings: Settings) -> int:
    """The most bytes of a form: a passport, once as a file and once as text, and a photo."""
    return 2 * settings.bpc_payload_max_bytes + _PHOTO_BYTES


@router.get(PATH)
async def page() -> HTMLResponse:
    return _page(200, _Form())


@router.post(PATH)
async def verify(request: Request, service: TheService) -> HTMLResponse:
    form, settings = _Form(), service.settings
    try:
        # In this order: a slow upload must not keep others from verifying.
        async with _sent(request, settings) as sent, service.reading:
            form = await _read(sent)
            report = _webhook(form, settings) if form.what == "webhook" else await _passport(form, settings)
    except HTTPException as error:
        is_large = error.status_code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        return _page(
            413 if is_large else 422, form, problem="That is too large." if is_large else "The form is damaged."
        )
    except _Unusable as error:
        return _page(422, form, problem=str(error))
    return _page(200, form, report=report)


def _sent(request: Request, settings: Settings) -> AbstractAsyncContextManager[FormData]:
    most = 2 * settings.bpc_payload_max_bytes
    return request.form(max_files=_MOST_FIELDS, max_fields=_MOST_FIELDS, max_part_size=most)


async def _read(sent: FormData) -> _Form:
    texts = {name: value for name, value in sent.items() if isinstance(value, str)}
    return _Form("webhook" if texts.get("what") == "webhook" else "passport", texts, await _files(sent))


async def _files(sent: FormData) -> dict[str, bytes]:
    found = {name: await value.read() for name, value in sent.items() if isinstance(value, UploadFile)}
    return {name: content for name, content in found.items() if content}


async def _passport(form: _Form, settings: Settings) -> Report:
    content = form.files.get("passport_file") or form.text("passport").encode(errors="replace")
    if not content:
        raise _Unusable("Paste the passport, or choose its file.")
    qr_text, photo = form.text("qr"), form.files.get("photo")
    if not qr_text and photo is None:
        raise _Unusable("Choose a photo of the QR code, or paste its text.")
    _check_size(content, settings)
    return await asyncio.to_thread(_passport_report, content, qr_text, photo, settings)


def _check_size(content: bytes, settings: Settings) -> None:
    """Checking a passport takes seconds per megabyte. A file has a little more than the payload."""
    if len(content) > settings.bpc_payload_max_bytes + 4096:
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)


def _passport_report(content: bytes, qr_text: str, photo: bytes | None, settings: Settings) -> Report:
    try:
        text = qr_text if photo is None else read_qr(photo)
    except Unreadable as error:
        return unreadable_photo(str(error))
    return passport_report(content, text, trusted_keys(settings))


def _webhook(form: _Form, settings: Settings) -> Report:
    # Browsers send the line breaks of a text field as CRLF. Our webhooks have none.
    body = form.files.get("body_file") or form.text("body").replace("\r\n", "\n").encode(errors="replace")
    headers = {SIGNATURE: form.text("signature"), NEXT_SIGNATURE: form.text("next_signature")}
    if not form.text("secret"):
        raise _Unusable("Enter the secret of the webhook endpoint.")
    if not body:
        raise _Unusable("Paste the body of the webhook, or choose a file with it.")
    if not headers[SIGNATURE]:
        raise _Unusable(f"Enter the header {SIGNATURE}.")
    _check_size(body, settings)
    return webhook_report(body, {name: value for name, value in headers.items() if value}, form.text("secret"))


def _page(status: int, form: _Form, *, report: Report | None = None, problem: str | None = None) -> HTMLResponse:
    html = _environment.get_template("verify.html").render(
        style=_style, form=form, report=report, problem=problem, path=PATH, signature=SIGNATURE,
        next_signature=NEXT_SIGNATURE, marks=_MARKS,
    )  # fmt: skip
    return HTMLResponse(html.encode(errors="replace"), status, _HEADERS)
