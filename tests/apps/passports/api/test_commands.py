"""The commands: what they print, their exit codes, and errors in one line."""

import json
from pathlib import Path
from uuid import uuid4

import pytest

from apps.passports.cli import main
from apps.passports.commands import Failed, add_named_tenant, replace_tenant_token, requeue
from apps.passports.settings import Settings
from apps.passports.tenants import tenant_with_token
from apps.passports.tools import trusted_keys
from holdfast.webhooks import Secrets, sign
from tests.apps.passports.api.conftest import Api, World
from tests.apps.passports.bench import KEY

pytestmark = pytest.mark.postgres

BODY = b'{"event_id":"17"}'
Captured = pytest.CaptureFixture[str]


def told(capsys: Captured, *arguments: str) -> tuple[int, str]:
    """The exit code, and the only line on stderr."""
    code = main(arguments)
    said = capsys.readouterr()
    (line,) = said.err.splitlines()
    assert (line.startswith("passports: "), said.out) == (True, "")
    return code, line.removeprefix("passports: ")


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["worker"],
        ["api"],
        ["demo"],
        ["requeue"],
        ["tenant", "add"],
        ["tenant", "token"],
        ["key"],
        ["verify", "passport"],
    ],
)
def test_every_command_has_help(capsys: Captured, command: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith(" ".join(["usage: python -m apps.passports", *command]))


def test_a_wrong_command_is_one_line_with_the_next_step(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments, message in (
        ([], "`python -m apps.passports --help` shows how to write it"),
        (["work"], "`python -m apps.passports --help` shows how to write it"),
        (["tenant", "add"], "`python -m apps.passports tenant add --help` shows how to write it"),
        (["tenant", "add", " "], "give the tenant a name"),
        (["tenant", "token", "17"], "'17' is not the ID of a tenant; `tenant add` printed it"),
        (["requeue", "17"], "'17' is not the ID of a job; GET /v1/dead-letters lists them"),
        (["verify", "passport", "/none.json", "--qr", "BPC1|"], "/none.json: cannot be read: No such file"),
    ):
        code, line = told(capsys, *arguments)
        assert (code, message in line) == (2, True), line
    monkeypatch.setenv("BPC_API_PORT", "many")
    assert told(capsys, "api")[1].startswith("BPC_API_PORT: ")
    monkeypatch.setenv("BPC_API_PORT", "8000")
    monkeypatch.setenv("BPC_DATABASE_URL", "postgresql://postgres@127.0.0.1:1/none")
    code, line = told(capsys, "tenant", "add", "Ann")
    assert (code, "PostgreSQL is not available at 127.0.0.1:1" in line, "HOLDFAST_STORE" in line) == (1, True, False)


def test_the_public_key_is_printed_as_the_variable_for_trusted_keys_takes_it(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BPC_SIGNING_KEY", KEY)
    own = trusted_keys(Settings.load())
    assert main(["key"]) == 0
    monkeypatch.setenv("BPC_TRUSTED_KEYS", capsys.readouterr().out.strip())
    monkeypatch.delenv("BPC_SIGNING_KEY")
    assert trusted_keys(Settings.load()) == own
    assert told(capsys, "key") == (2, "BPC_SIGNING_KEY is not set")


async def test_a_tenant_gets_a_token(api: Api, capsys: Captured) -> None:
    assert await add_named_tenant(api.bench.settings, "Eve Ltd") == 0
    printed = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert str(await tenant_with_token(api.bench.tools.pool, printed["token"])) == printed["tenant_id"]


async def test_a_token_is_replaced_and_the_old_one_stops_working(api: Api, capsys: Captured) -> None:
    assert await replace_tenant_token(api.bench.settings, str(api.ann.tenant)) == 0
    printed = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert (await api.ann.http.get("/v1/jobs")).status_code == 401
    bearer = {"Authorization": f"Bearer {printed['token']}"}
    assert (await api.ann.http.get("/v1/jobs", headers=bearer)).status_code == 200
    assert (await api.bob.http.get("/v1/jobs")).status_code == 200
    with pytest.raises(Failed, match="there is no tenant"):
        await replace_tenant_token(api.bench.settings, str(uuid4()))


async def test_a_dead_letter_is_requeued_with_all_its_attempts(api: Api, world: World, capsys: Captured) -> None:
    settings, job_id = api.bench.settings, world.ids["job_id"]
    assert await requeue(settings, job_id) == 0
    assert capsys.readouterr().out == f"requeued {job_id} with all its attempts\n"
    job = await api.ann.get(f"/jobs/{job_id}")
    assert (job["status"], job["attempts"]) == ("QUEUED", 0)
    for id, message in ((job_id, "is ready; only FAILED and DEAD_LETTER jobs"), (str(uuid4()), "there is no job")):
        with pytest.raises(Failed, match=message):
            await requeue(settings, id)


async def test_a_passport_is_verified_against_a_photo_or_a_text(
    api: Api, world: World, tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = f"/v1/passport-versions/{world.ids['passport_version_id']}"
    passport, label = tmp_path / "passport.json", tmp_path / "label.png"
    passport.write_bytes((await api.ann.http.get(f"{path}/file")).content)
    label.write_bytes((await api.ann.http.get(f"{path}/label.png")).content)
    qr = (await api.ann.get(path.removeprefix("/v1")))["qr_payload"]
    monkeypatch.setenv("BPC_SIGNING_KEY", KEY)
    assert trusted_keys(api.bench.settings)
    for given in (qr, str(label)):
        assert main(["verify", "passport", str(passport), "--qr", given]) == 0
        assert capsys.readouterr().out.startswith("The passport is genuine and belongs to this QR code.\n  ok  ")
    passport.write_bytes(passport.read_bytes().replace(b"75.5", b"75.6"))
    assert main(["verify", "passport", str(passport), "--qr", str(label), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["verdict"]) == (False, "The payload is not the one in the QR code (3 more).")
    assert [check["result"] for check in report["checks"]] == ["ok", "ok", *["not ok"] * 4]
    assert main(["verify", "passport", str(passport), "--qr", str(passport)]) == 1
    assert capsys.readouterr().out.startswith("The file is not a picture: send PNG, JPEG or WebP.\n")
    assert "begins with BPC1|" in told(capsys, "verify", "passport", str(passport), "--qr", "BPC2")[1]


def test_a_webhook_is_verified_with_either_secret(tmp_path: Path, capsys: Captured) -> None:
    headers = sign(BODY, Secrets("old", "new"), prefix="X-BPC", event_type="X", delivery_id="17")
    body, secret = tmp_path / "body", tmp_path / "secret"
    body.write_bytes(BODY)
    command = ["verify", "webhook", str(body), "--signature", headers["X-BPC-Signature"], "--secret-file", str(secret)]
    during = [*command, "--signature-next", headers["X-BPC-Signature-Next"]]
    for text, arguments, code in (
        ("old\n", command, 0), ("new", command, 1), ("old", during, 0), ("new", during, 0), ("other", during, 1),
    ):  # fmt: skip
        secret.write_text(text)
        assert (text, main(arguments)) == (text, code)
    capsys.readouterr()
    secret.write_text(" ")
    assert told(capsys, *command)[0] == 2
