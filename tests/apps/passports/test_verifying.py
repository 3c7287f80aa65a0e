"""The verifier accepts a passport with its own QR code, and nothing else."""

from collections.abc import Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from apps.passports import merkle
from apps.passports.canonical import canonical, read_json, sha256
from apps.passports.compiling import Build, Compiled, compile_version, leaves
from apps.passports.facts import JSON, parse_document
from apps.passports.qr import QrText
from apps.passports.signing import SigningKey, is_signed
from apps.passports.verifying import PREFIX, Finding, PassportFile, verdict, verify_passport, verify_webhook
from holdfast.webhooks import Secrets, sign
from tests.apps.passports.bench import ISSUED_AT, RULES
from tests.apps.passports.test_facts import as_json

TENANT = UUID(int=1)
BUILD = Build(UUID(int=2), UUID(int=3), UUID(int=4), "build-1", ISSUED_AT)
KEY = SigningKey.from_bytes("key-1", bytes(range(32)))
TRUSTED = {"key-1": KEY.public}


def compiled(build: Build = BUILD) -> Compiled:
    return compile_version(TENANT, build, parse_document(as_json(), JSON), RULES)


def file_of(passport: Compiled, key: SigningKey = KEY) -> bytes:
    payload = read_json(passport.payload)
    assert isinstance(payload, dict)
    return PassportFile(passport.version_id, payload, key.sign(passport.receipt_hash), key.id).as_bytes()


def code_of(passport: Compiled) -> str:
    return str(QrText(passport.version_id, passport.payload_hash, passport.proof_root_hash, passport.receipt_hash))


PASSPORT = compiled()
FILE, CODE = file_of(PASSPORT), code_of(PASSPORT)


def test_a_passport_and_its_code_are_accepted() -> None:
    assert verify_passport(FILE, CODE, TRUSTED) == []
    assert verdict([]) == "The passport is genuine and belongs to this QR code."


def test_compiling_again_gives_the_same_bytes() -> None:
    assert compiled() == PASSPORT
    assert KEY.sign(PASSPORT.receipt_hash) == KEY.sign(PASSPORT.receipt_hash)
    assert sha256(PASSPORT.payload) == PASSPORT.payload_hash
    assert sha256(PASSPORT.receipt) == PASSPORT.receipt_hash


def test_every_part_of_a_build_makes_another_version() -> None:
    later = ISSUED_AT + timedelta(microseconds=1)
    others = [
        Build(uuid4(), UUID(int=3), UUID(int=4), "build-1", ISSUED_AT),
        Build(UUID(int=2), uuid4(), UUID(int=4), "build-1", ISSUED_AT),
        Build(UUID(int=2), UUID(int=3), uuid4(), "build-1", ISSUED_AT),
        Build(UUID(int=2), UUID(int=3), UUID(int=4), "build-2", ISSUED_AT),
        Build(UUID(int=2), UUID(int=3), UUID(int=4), "build-1", later),
    ]
    ids = {BUILD.version_id(TENANT), BUILD.version_id(UUID(int=9)), *(each.version_id(TENANT) for each in others)}
    assert len(ids) == 7


def test_every_changed_byte_of_the_file_is_noticed() -> None:
    for place in range(len(FILE)):
        changed = bytearray(FILE)
        # Another letter, or the same letter in another case.
        changed[place] ^= 0x01 if place % 2 else 0x20
        assert verify_passport(bytes(changed), CODE, TRUSTED), f"byte {place}"


def test_every_changed_character_of_the_code_is_noticed() -> None:
    for place, character in enumerate(CODE):
        changed = f"{CODE[:place]}{'B' if character != 'B' else 'C'}{CODE[place + 1 :]}"
        assert verify_passport(FILE, changed, TRUSTED), f"character {place}"


def changed_payload(change: Callable[[dict[str, object]], object]) -> bytes:
    payload = read_json(PASSPORT.payload)
    assert isinstance(payload, dict)
    change(payload)  # type: ignore[arg-type]
    return PassportFile(PASSPORT.version_id, payload, KEY.sign(PASSPORT.receipt_hash), KEY.id).as_bytes()


def other_passport() -> Compiled:
    return compiled(Build(UUID(int=2), UUID(int=3), UUID(int=4), "build-2", ISSUED_AT))


@pytest.mark.parametrize(
    ("content", "code", "checks", "line"),
    [
        (b"", CODE, ["file"], "The file is not JSON."),
        (b"[]", CODE, ["file"], "The file is not a passport."),
        (FILE + b"\n", CODE, ["file"], "The file was changed: it is not in canonical form."),
        (
            FILE,
            "hello",
            ["qr"],
            "The QR code is not that of a passport: the text is not of the form BPC1|pv=…|ph=…|pr=…|rh=….",
        ),
        (
            FILE,
            code_of(other_passport()),
            ["qr", "payload", "receipt"],
            "The QR code is that of another passport (2 more).",
        ),
        (
            changed_payload(lambda payload: payload.update(build_id="build-2")),
            CODE,
            ["payload", "receipt", "signature"],
            "The payload is not the one in the QR code (2 more).",
        ),
        (
            changed_payload(lambda payload: payload["facts"].pop()),  # type: ignore[attr-defined]
            CODE,
            ["payload", "proof", "receipt", "signature"],
            "The payload is not the one in the QR code (3 more).",
        ),
        (
            file_of(PASSPORT, SigningKey.from_bytes("key-1", bytes(32))),
            CODE,
            ["signature"],
            "The signature is not that of the key key-1.",
        ),
        (
            file_of(PASSPORT, SigningKey.from_bytes("key-2", bytes(32))),
            CODE,
            ["signature"],
            "The key 'key-2' is not trusted: BPC_TRUSTED_KEYS lacks it.",
        ),
    ],
)
def test_the_verdict_says_in_one_line_what_is_wrong(content: bytes, code: str, checks: list[str], line: str) -> None:
    findings = verify_passport(content, code, TRUSTED)
    assert [finding.check for finding in findings] == checks
    assert verdict(findings) == line


def test_a_fact_can_be_proved_without_the_others() -> None:
    payload = read_json(PASSPORT.payload)
    assert isinstance(payload, dict)
    facts = leaves(payload)
    root = QrText.parse(CODE).proof_root_hash
    for index, fact in enumerate(facts):
        assert merkle.proves(root, fact, index, len(facts), merkle.audit_path(index, facts))


def test_signatures_are_those_of_rfc_8032() -> None:
    """The second vector of section 7.1."""
    private = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
    key = SigningKey.from_bytes("vector", private)
    assert key.public.hex() == "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c"
    signature = key.sign(bytes.fromhex("72"))
    assert signature.hex() == (
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
        "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
    )
    assert is_signed(bytes.fromhex("72"), signature, key.public)
    assert not is_signed(bytes.fromhex("73"), signature, key.public)
    assert not is_signed(bytes.fromhex("72"), signature[:-1], key.public)
    assert not is_signed(bytes.fromhex("72"), signature, key.public[:-1])


def test_a_webhook_is_accepted_with_either_secret_during_a_rotation() -> None:
    headers = sign(b"{}", Secrets("old", "new"), prefix=PREFIX, event_type="PASSPORT_SIGNED", delivery_id=uuid4())
    assert verify_webhook(b"{}", headers, "old") == []
    assert verify_webhook(b"{}", headers, "new") == []
    (finding,) = verify_webhook(b"{ }", headers, "old")
    assert isinstance(finding, Finding)
    assert finding.check == "signature"
    assert verify_webhook(b"{}", headers, "another")
    assert verify_webhook(b"{}", {}, "old")


def test_the_receipt_binds_the_version_to_its_hashes() -> None:
    receipt = read_json(PASSPORT.receipt)
    code = QrText.parse(CODE)
    assert isinstance(receipt, dict)
    assert receipt["passport_version_id"] == str(code.version_id)
    assert canonical(receipt) == PASSPORT.receipt
