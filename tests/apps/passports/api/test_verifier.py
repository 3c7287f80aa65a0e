"""The page on which anyone can verify a passport or a webhook, through HTTP."""

import base64
import hashlib
import io
import re
import struct
import zlib
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser

import httpx
import pytest
from PIL import Image

from holdfast.webhooks import Secrets, sign
from tests.apps.passports.api.conftest import Api, World, opened_api
from tests.apps.passports.bench import worker_settings
from tests.databases import Database

pytestmark = pytest.mark.postgres

BODY = b'{"event_id":"17","event_type":"PASSPORT_SIGNED"}'
SCRIPTS = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</textarea><script>x</script>", "{{ 7*7 }}"]


@dataclass
class Page(HTMLParser):
    """What the page shows."""

    status: int
    tags: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def checks(self) -> dict[str, str]:
        """The result of each check by its title."""
        found = re.findall(r"</i> (ok|not ok|not checked)</b> <span><strong>([^<]+):</strong>", self.html)
        return {unescape(title): result for result, title in found}

    @property
    def verdict(self) -> str:
        found = re.search(r"</span> ([^<]+)</h2>", self.html)
        return unescape(found[1]) if found else ""

    html: str = ""


def shown(response: httpx.Response) -> Page:
    page = Page(response.status_code, html=response.text)
    page.feed(response.text)
    return page


async def sent(api: Api, texts: dict[str, str], files: dict[str, bytes] | None = None) -> Page:
    uploads = {name: (name, content) for name, content in (files or {}).items()}
    return shown(await api.nobody.post("/verify", data=texts, files=uploads or {"photo": ("", b"")}))


@dataclass(frozen=True, slots=True)
class Given:
    file: bytes
    qr: str
    label: bytes


@pytest.fixture
async def given(api: Api, world: World) -> Given:
    path = f"/v1/passport-versions/{world.ids['passport_version_id']}"
    file, label = [(await api.ann.http.get(f"{path}/{name}")).content for name in ("file", "label.png")]
    return Given(file, (await api.ann.get(path.removeprefix("/v1")))["qr_payload"], label)


async def test_the_page_needs_no_script_and_nothing_from_elsewhere(api: Api) -> None:
    response = await api.nobody.get("/verify")
    page = shown(response)
    assert response.status_code == 200
    style = re.search(r"<style>(.*)</style>", response.text, re.DOTALL)
    assert style is not None
    hashed = base64.b64encode(hashlib.sha256(style[1].encode()).digest()).decode()
    policy = response.headers["content-security-policy"]
    assert policy == (
        f"default-src 'none'; style-src 'sha256-{hashed}'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe"}
    assert not [name for _, attributes in page.tags for name in attributes if name in ("style", "src", "href")]
    assert "url(" not in style[1]
    assert "@import" not in style[1]
    assert response.headers["cache-control"] == "no-store"


async def test_every_field_has_a_label(api: Api) -> None:
    tags = shown(await api.nobody.get("/verify")).tags
    labeled = {attributes.get("for") for tag, attributes in tags if tag == "label"}
    fields = [attributes for tag, attributes in tags if tag in ("input", "textarea")]
    assert {each["id"] for each in fields if each.get("type") != "hidden"} == labeled


async def test_a_genuine_passport_fits_its_photo_and_its_text(api: Api, given: Given) -> None:
    for texts, files in (
        ({}, {"passport_file": given.file, "photo": given.label}),
        ({"passport": given.file.decode()}, {"photo": given.label}),
        ({"passport": f"\r\n{given.file.decode()}\r\n", "qr": f" {given.qr}\r\n"}, {}),
    ):
        page = await sent(api, {"what": "passport", **texts}, files)
        assert (page.status, page.verdict) == (200, "The passport is genuine and belongs to this QR code.")
        assert set(page.checks.values()) == {"ok"}
        assert list(page.checks) == [
            "Passport file", "QR code", "Payload hash", "Merkle proof", "Receipt hash", "Signature",
        ]  # fmt: skip


async def test_it_says_in_one_line_what_is_wrong(api: Api, given: Given, world: World) -> None:
    changed = given.file.replace(b"75.5", b"76.5")
    again = await api.ann.post(
        "/passport-versions", {**world.building, "snapshot_id": world.ids["snapshot_id"], "build_id": "2"}
    )
    await api.work()
    other = (await api.ann.get(f"/passport-versions/{again['passport_version_id']}"))["qr_payload"]
    cases = [
        (changed, given.qr, "The payload is not the one in the QR code (3 more).", "Payload hash"),
        (given.file, other, "The QR code is that of another passport (2 more).", "QR code"),
        (given.file[:-1], given.qr, "The file is not JSON.", "Passport file"),
        (given.file + b"\n", given.qr, "The file was changed: it is not in canonical form.", "Passport file"),
        (b"{}", given.qr, "The file is not a passport.", "Passport file"),
        (given.file, "https://example.com", "The QR code is not that of a passport: ", "QR code"),
        (
            given.file.replace(b"dev-key-1", b"dev-key-2"),
            given.qr,
            "The key 'dev-key-2' is not trusted: BPC_TRUSTED_KEYS lacks it.",
            "Signature",
        ),
    ]
    for file, qr, verdict, title in cases:
        page = await sent(api, {"what": "passport", "qr": qr}, {"passport_file": file})
        assert page.status == 200
        assert page.verdict.startswith(verdict), page.verdict
        assert page.checks[title] == "not ok"


async def test_a_photo_without_one_readable_code_is_named(api: Api, given: Given) -> None:
    empty = io.BytesIO()
    Image.new("L", (50, 50)).save(empty, "PNG")
    for photo, verdict in (
        (empty.getvalue(), "There is no QR code in the picture."),
        (b"not a picture", "The file is not a picture: send PNG, JPEG or WebP."),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "The file is not a picture: send PNG, JPEG or WebP."),
        (given.label[: len(given.label) // 2], "The file is not a picture: send PNG, JPEG or WebP."),
        (huge_png(), "The picture has more than 25,000,000 pixels."),
    ):
        page = await sent(api, {"what": "passport"}, {"passport_file": given.file, "photo": photo})
        assert (page.status, page.verdict) == (200, verdict)
        assert (page.checks["QR code"], page.checks["Signature"]) == ("not ok", "not checked")


def huge_png() -> bytes:
    """A few hundred bytes that claim to be a picture of 30,000 by 30,000 pixels."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", 30_000, 30_000, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0" * 30_001))
        + chunk(b"IEND", b"")
    )


async def test_a_webhook_is_verified_also_during_a_rotation(api: Api) -> None:
    headers = sign(BODY, Secrets("old", "new"), prefix="X-BPC", event_type="X", delivery_id="17")
    request = {
        "what": "webhook",
        "signature": headers["X-BPC-Signature"],
        "next_signature": headers["X-BPC-Signature-Next"],
        "body": BODY.decode(),
    }
    for secret, results in (
        ("old", {"X-BPC-Signature": "ok", "X-BPC-Signature-Next": "not checked"}),
        ("new", {"X-BPC-Signature": "not checked", "X-BPC-Signature-Next": "ok"}),
    ):
        page = await sent(api, {**request, "secret": secret})
        assert page.verdict == "The webhook is genuine: this secret signed exactly this body."
        assert page.checks == results
    for change in ({"secret": "another"}, {"secret": "old", "body": BODY.decode() + " x"}):
        page = await sent(api, {**request, "secret": "old", **change})
        assert page.verdict == "X-BPC-Signature does not match: another secret, or the body was changed."
        assert set(page.checks.values()) == {"not ok"}
    page = await sent(api, {**request, "secret": "old", "body": ""}, {"body_file": BODY})
    assert page.checks["X-BPC-Signature"] == "ok"


async def test_a_form_that_is_not_complete_says_what_is_missing(api: Api, given: Given) -> None:
    signed = {"what": "webhook", "secret": "s", "body": "{}", "signature": "sha256=0"}
    for texts, problem in (
        ({}, "Paste the passport, or choose its file."),
        ({"passport": given.file.decode()}, "Choose a photo of the QR code, or paste its text."),
        ({**signed, "secret": " "}, "Enter the secret of the webhook endpoint."),
        ({**signed, "body": ""}, "Paste the body of the webhook, or choose a file with it."),
        ({**signed, "signature": ""}, "Enter the header X-BPC-Signature."),
    ):
        page = await sent(api, texts)
        assert (page.status, page.verdict) == (422, problem)
    damaged = await api.nobody.post("/verify", content=b"x", headers={"Content-Type": "multipart/form-data"})
    assert (damaged.status_code, shown(damaged).verdict) == (422, "The form is damaged.")
    unknown = await api.nobody.post("/verify", content=b"\xff{", headers={"Content-Type": "application/json"})
    assert unknown.status_code == 422


async def test_what_was_sent_is_shown_again_as_inert_text_but_no_secret(api: Api) -> None:
    for script in SCRIPTS:
        for texts in (
            {"what": "passport", "passport": script, "qr": script},
            {"what": "webhook", "signature": script, "next_signature": script, "body": script, "secret": "s3cret"},
        ):
            page = await sent(api, texts)
            tags = [tag for tag, _ in page.tags]
            assert not {"script", "img"} & {*tags}
            assert tags.count("textarea") == 3
            assert script in unescape(page.html)
            assert "s3cret" not in page.html
    page = await sent(api, {"what": "passport", "passport": '{"passport_version_id": "<b>"}', "qr": "half \x00"})
    assert page.status == 200


async def test_uploads_are_bounded(database: Database) -> None:
    async with opened_api(worker_settings(database.url, bpc_payload_max_bytes=1000)) as api:
        page = await sent(api, {"qr": "x"}, {"passport_file": b"{}", "photo": b"0" * (17 * 1024 * 1024)})
        assert (page.status, page.verdict) == (413, "That is too large.")
        page = await sent(api, {"qr": "x", "passport": "y" * 2001})
        assert page.status in (413, 422)
        # Smaller than a photo may be, but no passport and no webhook is that large.
        large = b" " * 6000
        for texts, files in (
            ({"qr": "BPC1|x"}, {"passport_file": large}),
            ({"what": "webhook", "signature": "x", "secret": "y"}, {"body_file": large}),
        ):
            page = await sent(api, texts, files)
            assert (page.status, page.verdict) == (413, "That is too large.")
