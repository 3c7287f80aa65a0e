"""TLS is verified for the host's name, although the connection goes to an address."""

import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from holdfast.webhooks import HttpException, Policy, send
from tests.webhooks.receiver import receiving

PRIVATE = Policy(allow_private=True)


@dataclass(frozen=True, slots=True)
class Tls:
    server: ssl.SSLContext
    trusting: ssl.SSLContext


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    """A server with a certificate for hooks.example.com that it signed itself, and a client that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("hooks.example.com")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    file = tmp_path_factory.mktemp("tls") / "server.pem"
    file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + pem
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return Tls(server, ssl.create_default_context(cadata=pem.decode()))


async def loopback(host: str, port: int) -> Sequence[str]:
    return ["127.0.0.1"]


async def test_the_server_is_asked_for_and_verified_as_the_host(tls: Tls) -> None:
    asked: list[str | None] = []
    tls.server.sni_callback = lambda _, name, __: asked.append(name)
    async with receiving(tls=tls.server) as receiver:
        url = f"https://hooks.example.com:{receiver.port}/hook"
        response = await send(url, b"{}", {}, policy=PRIVATE, resolve=loopback, tls=tls.trusting)
    assert response.status == 204
    assert asked == ["hooks.example.com"]
    assert receiver.received[0].headers["host"] == f"hooks.example.com:{receiver.port}"


@pytest.mark.parametrize("host", ["other.example.com", "127.0.0.1"])
async def test_a_certificate_for_another_host_is_rejected_before_anything_is_sent(tls: Tls, host: str) -> None:
    async with receiving(tls=tls.server) as receiver:
        url = f"https://{host}:{receiver.port}/hook"
        with pytest.raises(HttpException, match=r"^[a-z0-9.]+: TLS: .*mismatch") as failed:
            await send(url, b"{}", {}, policy=PRIVATE, resolve=loopback, tls=tls.trusting)
    assert failed.value.code == "HttpException"
    assert receiver.received == []


async def test_a_certificate_of_an_unknown_authority_is_rejected_by_default(tls: Tls) -> None:
    async with receiving(tls=tls.server) as receiver:
        url = f"https://hooks.example.com:{receiver.port}/hook"
        with pytest.raises(HttpException, match="TLS: self-signed certificate"):
            await send(url, b"{}", {}, policy=PRIVATE, resolve=loopback)
    assert receiver.received == []


async def test_a_server_without_tls_is_a_network_error(tls: Tls) -> None:
    async with receiving(b"HTTP/1.1 400 Bad Request\r\n\r\n", reads=False) as receiver:
        url = f"https://hooks.example.com:{receiver.port}/hook"
        with pytest.raises(HttpException, match="TLS: "):
            await send(url, b"{}", {}, policy=PRIVATE, resolve=loopback, tls=tls.trusting)
