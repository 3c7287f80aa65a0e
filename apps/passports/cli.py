"""The command line: what each command takes, and errors in one line."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from typing import NoReturn

import asyncpg

from apps.passports.codes import DatabaseUnavailable
from apps.passports.commands import (
    Failed,
    add_named_tenant,
    replace_tenant_token,
    requeue,
    show_public_key,
    verify_passport_file,
    verify_webhook_file,
)
from apps.passports.settings import Misconfigured, Settings
from holdfast.errors import AccessRefused, HoldfastError, InvalidInput

_FAILED, _MISCONFIGURED, _INTERRUPTED = 1, 2, 130
_EPILOG = "Environment variables set everything else: see README.md next to this program."


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Misconfigured(f"{message}; `{self.prog} --help` shows how to write it")


def main(arguments: Sequence[str]) -> int:
    """Return the exit code: 0, 1 for a failure while running, 2 for a command or a configuration that is wrong."""
    try:
        return _run(_parser().parse_args(arguments))
    except (Misconfigured, InvalidInput, AccessRefused) as error:
        return _tell(error, _MISCONFIGURED)
    except (
        Failed, DatabaseUnavailable, HoldfastError, OSError, asyncpg.PostgresError, asyncpg.InterfaceError
    ) as error:  # fmt: skip
        return _tell(error, _FAILED)
    except KeyboardInterrupt:
        return _INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m apps.passports", description="Battery passports for many tenants.", epilog=_EPILOG)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("worker", help="run jobs until SIGTERM or Ctrl-C")
    commands.add_parser("api", help="serve the API and the verifier page until SIGTERM or Ctrl-C")
    demo = commands.add_parser("demo", help="show everything together on a temporary PostgreSQL")
    demo.add_argument("--serve", action="store_true", help="keep it up at the end, to try the verifier page")
    commands.add_parser("key", help="print the public key, as BPC_TRUSTED_KEYS takes it")
    again = commands.add_parser("requeue", help="run a dead letter again, with all its attempts")
    again.add_argument("job", metavar="JOB", help="the ID of the job")
    tenants = commands.add_parser("tenant", help="add tenants, replace their tokens").add_subparsers(
        dest="action", required=True, metavar="add|token"
    )
    add = tenants.add_parser("add", help="add a tenant and print the token for its API clients")
    add.add_argument("name", metavar="NAME")
    token = tenants.add_parser("token", help="replace a tenant's token and print the new one")
    token.add_argument("tenant", metavar="ID", help="the ID of the tenant")
    verifying = commands.add_parser("verify", help="verify a passport or a webhook; exit code 1 if it is not genuine")
    subjects = verifying.add_subparsers(dest="subject", required=True, metavar="passport|webhook")
    passport = subjects.add_parser("passport", help="verify a passport against its QR code")
    passport.add_argument("file", metavar="FILE", help="the passport as JSON; - for standard input")
    passport.add_argument("--qr", required=True, metavar="TEXT|IMAGE", help="the text of the QR code, or a photo of it")
    webhook = subjects.add_parser("webhook", help="verify the signature of a webhook")
    webhook.add_argument("file", metavar="FILE", help="the body, exactly as it arrived; - for standard input")
    webhook.add_argument("--signature", required=True, metavar="sha256=…", help="the header X-BPC-Signature")
    webhook.add_argument("--signature-next", metavar="sha256=…", help="the header X-BPC-Signature-Next")
    webhook.add_argument("--secret-file", required=True, metavar="FILE", help="a file with the secret of the endpoint")
    for each in (passport, webhook):
        each.add_argument("--json", action="store_true", help="print the result as JSON")
    return parser


def _run(given: argparse.Namespace) -> int:
    """Run the command. Large imports happen here, so `--help` does not wait for a web framework."""
    match given.command:
        case "demo":
            from apps.passports.demo import run_demo

            return run_demo(serve=given.serve)
        case "api":
            from apps.passports.api import serve

            return serve(Settings.load())
        case "key":
            return show_public_key(Settings.load())
        case "requeue":
            return asyncio.run(requeue(Settings.load(), given.job))
        case "tenant" if given.action == "token":
            return asyncio.run(replace_tenant_token(Settings.load(), given.tenant))
        case "tenant":
            return asyncio.run(add_named_tenant(Settings.load(), given.name))
        case "verify" if given.subject == "passport":
            return verify_passport_file(Settings.load(), given.file, given.qr, as_json=given.json)
        case "verify":
            return verify_webhook_file(
                given.file, given.signature, given.signature_next, given.secret_file, as_json=given.json
            )
        case _:
            from apps.passports.worker import run_background

            return run_background(Settings.load())


def _tell(error: Exception, code: int) -> int:
    line = " ".join(str(error).split()) or type(error).__name__
    # Holdfast names its own variable and command for the store.
    line = line.replace("HOLDFAST_STORE", "BPC_DATABASE_URL").replace(" with --store or --app", "")
    line = line.replace("`holdfast migrate", "`HOLDFAST_STORE=$BPC_DATABASE_URL holdfast migrate")
    sys.stderr.write(f"passports: {line}\n")
    return code
