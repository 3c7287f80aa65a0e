"""What the verifier tells people: one line, and the result of each check. The page and the command share it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from apps.passports.qr import QrText
from apps.passports.verifying import PREFIX, verdict, verify_passport, verify_webhook

SIGNATURE, NEXT_SIGNATURE = f"{PREFIX}-Signature", f"{PREFIX}-Signature-Next"
_PASSPORT_CHECKS = {
    "file": ("Passport file", "is complete, and in canonical form"),
    "qr": ("QR code", "is that of this passport version"),
    "payload": ("Payload hash", "is the one in the QR code"),
    "proof": ("Merkle proof", "gives the root in the QR code"),
    "receipt": ("Receipt hash", "is the one in the QR code"),
    "signature": ("Signature", "was made with a trusted key"),
}
_UNCHECKED = "could not be checked"


class Result(StrEnum):
    OK = "ok"
    WRONG = "not ok"
    UNCHECKED = "not checked"


@dataclass(frozen=True, slots=True)
class Check:
    title: str
    result: Result
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    is_ok: bool
    verdict: str
    """One line."""
    checks: tuple[Check, ...]


def passport_report(content: bytes, qr_text: str, trusted: Mapping[str, bytes]) -> Report:
    """`trusted` has the public key of each key ID."""
    findings = verify_passport(content, qr_text, trusted)
    wrong = {finding.check: finding.message for finding in reversed(findings)}
    checked = ["file"] if "file" in wrong else ["file", "qr"] if not _is_qr_text(qr_text) else list(_PASSPORT_CHECKS)
    return Report(not findings, verdict(findings), _passport_checks(wrong, checked))


def unreadable_photo(message: str) -> Report:
    """The report if there is no QR code to check."""
    return Report(False, f"{message[0].upper()}{message[1:]}.", _passport_checks({"qr": message}, ["qr"]))


def webhook_report(body: bytes, headers: Mapping[str, str], secret: str) -> Report:
    """`headers` has X-BPC-Signature, and during a rotation X-BPC-Signature-Next. The secret may have made either."""
    findings = verify_webhook(body, headers, secret)
    # If the other header fits, this one belongs to the other secret of a rotation.
    no = (
        (Result.WRONG, "was not made with this secret over this body")
        if findings
        else (Result.UNCHECKED, "is for another secret, as during a rotation")
    )
    checks = []
    for name in (SIGNATURE, NEXT_SIGNATURE):
        if name in headers:
            is_wrong = verify_webhook(body, {SIGNATURE: headers[name]}, secret)
            checks.append(Check(name, *(no if is_wrong else (Result.OK, "was made with this secret over this body"))))
    accepted = "The webhook is genuine: this secret signed exactly this body."
    return Report(not findings, verdict(findings) if findings else accepted, tuple(checks))


def _passport_checks(wrong: Mapping[str, str], checked: Sequence[str]) -> tuple[Check, ...]:
    return tuple(
        Check(title, Result.WRONG, wrong[name])
        if name in wrong
        else Check(title, Result.OK, message)
        if name in checked
        else Check(title, Result.UNCHECKED, _UNCHECKED)
        for name, (title, message) in _PASSPORT_CHECKS.items()
    )


def _is_qr_text(text: str) -> bool:
    try:
        QrText.parse(text)
    except ValueError:
        return False
    return True
