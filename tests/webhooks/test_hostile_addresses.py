"""No webhook reaches an address that is not public, however the address is written (case S37)."""

import asyncio
import socket
import threading
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.failures import Failures
from holdfast.domain.outcome import Failed
from holdfast.webhooks import Policy, WebhookAddressRefused, WebhookTimeout, check_url, send
from holdfast.webhooks.addresses import is_public
from holdfast.webhooks.policy import PUBLIC_HTTPS
from holdfast.webhooks.resolving import checked_addresses
from tests.webhooks.receiver import answering, receiving

# With HTTP allowed, only the guard of addresses stands between a webhook and these hosts.
ANY_SCHEME = Policy(allow_http=True)

SPELLED_OUT = (
    # Loopback and this host
    "127.0.0.1",
    "127.8.8.8",
    "0.0.0.0",  # noqa: S104 - not bound to
    "0.1.2.3",
    "[::1]",
    "[::]",
    "[0:0:0:0:0:0:0:1]",
    # Other forms of IPv4 addresses that C libraries accept
    "127.1",
    "127.0.1",
    "127.0.0.1.",
    "2130706433",
    "017700000001",
    "0177.0.0.1",
    "0177.0.0.01",
    "0x7f.1",
    "0x7f.0.0.1",
    "0x7f000001",
    "0X7F000001",
    "0x",
    "0",
    "127.0.0.0x1",
    "127.000.000.001",
    "1.2.3.4.5",
    "256.256.256.256",
    "4294967297",
    "169.254.43518",
    # Forms that Unicode allows
    "１２７.0.0.1",  # noqa: RUF001
    "127。0。0。1",
    "127．0．0．1",  # noqa: RUF001
    "①②⑦.0.0.1",
    "١٢٧.٠.٠.١",  # noqa: RUF001
    "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ",
    "local\u00adhost",
    "localhost\u3002",
    # Percent signs, control characters, confusing separators
    "127.0.0.%31",
    "%31%32%37.0.0.1",
    "127.0.0.1%00.example.com",
    "127.0.0.1\t",
    "\t127.0.0.1",
    "127.0.0.1\r\n",
    "127.0.0.1\\.example.com",
    "127.0.0.1 .example.com",
    # Names of local hosts
    "localhost",
    "LocalHost",
    "localhost.",
    "app.localhost",
    "db.internal",
    "metadata.google.internal",
    "printer.local",
    "intranet",
    "..",
    "a..example.com",
    "-a.example.com",
    # User names and passwords
    "good.example.com@127.0.0.1",
    "good.example.com:80@127.0.0.1",
    "good.example.com\\@127.0.0.1",
    "good.example.com%23@127.0.0.1",
    "user:password@good.example.com",
    ":@good.example.com",
    # Ports
    "good.example.com:0",
    "good.example.com:65536",
    "good.example.com:-1",
    "good.example.com:+80",
    "good.example.com:8_0",
    "good.example.com:８０",  # noqa: RUF001
    "good.example.com:80:90",
    "good.example.com: 80",
    # Private, link-local and other special networks
    "10.0.0.1",
    "172.16.0.1",
    "172.31.255.255",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.7",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    # IPv4 addresses inside of IPv6 addresses
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:ffff:169.254.169.254]",
    "[::ffff:8.8.8.8]",
    "[::ffff:0:127.0.0.1]",
    "[::127.0.0.1]",
    "[::8.8.8.8]",
    "[64:ff9b::127.0.0.1]",
    "[64:ff9b::a9fe:a9fe]",
    "[64:ff9b:1::8.8.8.8]",
    "[64:ff9b:1:ffff:ffff:ffff:7f00:1]",
    "[2002:7f00:1::]",
    "[2002:a9fe:a9fe::1]",
    "[2002:808:808::1]",
    "[2001:0:4136:e378:8000:63bf:3fff:fdd2]",
    # Special networks of IPv6
    "[fe80::1]",
    "[fe80::1%25eth0]",
    "[fe80::1%eth0]",
    "[2606:4700::1111%25eth0]",
    "[febf::1]",
    "[fec0::1]",
    "[fc00::1]",
    "[fd00:ec2::254]",
    "[fd20:ce::254]",
    "[ff02::1]",
    "[ff0e::1]",
    "[100::1]",
    "[2001:2::1]",
    "[2001:10::1]",
    "[2001:db8::1]",
    "[3fff::1]",
    "[5f00::1]",
    "[4000::1]",
)

RESOLVED = (
    ["127.0.0.1"],
    ["::1"],
    ["0.0.0.0"],  # noqa: S104 - not bound to
    ["10.1.2.3"],
    ["100.64.0.1"],
    ["169.254.169.254"],
    ["192.168.0.1"],
    ["224.0.0.1"],
    ["255.255.255.255"],
    ["::ffff:127.0.0.1"],
    ["64:ff9b::7f00:1"],
    ["2002:7f00:1::1"],
    ["fe80::1"],
    ["fe80::1%1"],
    ["fd00::1"],
    # One public address does not excuse another.
    ["8.8.8.8", "127.0.0.1"],
    ["127.0.0.1", "8.8.8.8"],
    ["2606:4700::1111", "8.8.8.8", "9.9.9.9", "1.1.1.1", "fd00::1"],
)

OTHER_URLS = (
    "",
    "hooks.example.com",
    "//hooks.example.com/",
    "/hook",
    "https:hooks.example.com",
    "https:/hooks.example.com",
    "https:///hook",
    "https://",
    " https://hooks.example.com/",
    "https://[::1",
    "https://[]/",
    "https://[v1.fe80]/",
    "https://xn--/",
    "https://\ud800/",
    "ftp://hooks.example.com/",
    "file:///etc/passwd",
    "gopher://127.0.0.1:6379/_FLUSHALL",
    "unix:///var/run/docker.sock",
    "javascript:alert(1)",
    f"https://{'a' * 64}.example.com/",
    f"https://{'a.' * 130}example.com/",
    f"https://example.com/{'a' * 70_000}",
)


@pytest.fixture
def connected_to(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The addresses that the event loop was asked to connect a socket to."""
    connected_to: list[object] = []
    connect = BaseSelectorEventLoop.sock_connect

    async def recorded(loop: BaseSelectorEventLoop, sock: socket.socket, address: Any) -> None:  # noqa: ANN401
        connected_to.append(address)
        await connect(loop, sock, address)

    monkeypatch.setattr(BaseSelectorEventLoop, "sock_connect", recorded)
    return connected_to


async def never(host: str, port: int) -> Sequence[str]:
    raise AssertionError(f"DNS was asked for {host!r}")


async def test_no_byte_reaches_a_hostile_address(connected_to: list[object]) -> None:
    async with AsyncExitStack() as exits:
        trap = await exits.enter_async_context(receiving())
        if socket.has_dualstack_ipv6():
            await exits.enter_async_context(receiving(host="::1", port=trap.port))
        # The trap works, and so does the list of connections.
        await send(trap.url, b"{}", {}, policy=Policy(allow_http=True, allow_private=True), resolve=never)
        assert (trap.connections, connected_to) == (1, [("127.0.0.1", trap.port)])
        connected_to.clear()

        assert len(SPELLED_OUT) + len(RESOLVED) >= 60
        reached = []
        for host in SPELLED_OUT:
            for port in ("", f":{trap.port}"):
                try:
                    await send(f"http://{host}{port}/hook", b"{}", {}, policy=ANY_SCHEME, resolve=never, timeout="5s")
                except WebhookAddressRefused:
                    continue
                reached.append(host)
        for addresses in RESOLVED:

            async def resolve(host: str, port: int, addresses: Sequence[str] = addresses) -> Sequence[str]:
                return addresses

            url = f"http://hooks.example.com:{trap.port}/hook"
            with pytest.raises(WebhookAddressRefused):
                await send(url, b"{}", {}, policy=ANY_SCHEME, resolve=resolve, timeout="5s")
        assert reached == []
        assert (trap.connections, connected_to) == (1, [])


@pytest.mark.parametrize("host", SPELLED_OUT)
def test_a_hostile_host_is_refused_at_registration(host: str) -> None:
    with pytest.raises(WebhookAddressRefused):
        check_url(f"https://{host}/hook")


@pytest.mark.parametrize("url", OTHER_URLS, ids=lambda url: url[:30].encode("ascii", "backslashreplace").decode())
def test_what_is_not_a_web_address_is_refused(url: str) -> None:
    with pytest.raises(WebhookAddressRefused):
        check_url(url, Policy(allow_http=True, allow_private=True))


@given(st.text())
def test_every_text_is_allowed_or_refused(text: str) -> None:
    for url in (text, f"https://{text}", f"https://hooks.example.com:{text}/"):
        with suppress(WebhookAddressRefused):
            check_url(url)


@given(st.from_regex(r"[0-9a-fx.]{1,20}|(0?x?[0-9a-f]{1,10}\.){0,4}0?x?[0-9a-f]{1,10}", fullmatch=True))
def test_whatever_the_system_takes_for_an_address_is_refused_unless_it_is_public(host: str) -> None:
    try:
        address = ip_address(socket.inet_aton(host))
    except OSError:
        return
    try:
        check_url(f"https://{host}/")
    except WebhookAddressRefused:
        return
    assert is_public(address)


async def test_the_systems_resolver_is_guarded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def hosts_file(*_: object, **__: object) -> list[object]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 443))]

    monkeypatch.setattr(socket, "getaddrinfo", hosts_file)
    with pytest.raises(WebhookAddressRefused):
        await send("https://hooks.example.com/", b"{}", {})


async def test_dns_is_asked_once_and_only_its_answer_is_connected_to(connected_to: list[object]) -> None:
    answers = iter([["127.0.0.2"], ["127.0.0.1"]])
    asked = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        asked.append((host, port))
        return next(answers)

    async with receiving(host="127.0.0.2") as checked, receiving(port=checked.port) as trap:
        url = f"http://hooks.example.com:{checked.port}/hook"
        await send(url, b"{}", {}, policy=Policy(allow_http=True, allow_private=True), resolve=rebinding)
        assert asked == [("hooks.example.com", checked.port)]
        assert connected_to == [("127.0.0.2", checked.port)]
        assert (checked.connections, trap.connections) == (1, 0)
        assert checked.received[0].headers["host"] == f"hooks.example.com:{checked.port}"


async def test_the_system_never_resolves_the_name_of_a_checked_host(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    getaddrinfo = socket.getaddrinfo

    def recorded(host: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401
        asked.append(host)
        return getaddrinfo(host, *args, **options)

    async def loopback(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    monkeypatch.setattr(socket, "getaddrinfo", recorded)
    async with receiving() as receiver:
        url = f"http://hooks.example.com:{receiver.port}/"
        asked.clear()
        await send(url, b"{}", {}, policy=Policy(allow_http=True, allow_private=True), resolve=loopback)
    assert "hooks.example.com" not in asked


async def test_a_redirect_to_an_internal_address_is_not_followed() -> None:
    async with receiving() as trap:
        for status in (301, 302, 303, 307, 308):
            async with receiving(answering(status, location=trap.url)) as receiver:
                with pytest.raises(Exception, match=f"answered {status}; redirects are not followed"):
                    await send(receiver.url, b"{}", {}, policy=Policy(allow_http=True, allow_private=True))
        assert trap.connections == 0


async def test_proxies_of_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as proxy, receiving() as receiver:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.port}")
        await send(receiver.url, b"{}", {}, policy=Policy(allow_http=True, allow_private=True))
        assert (proxy.connections, receiver.connections) == (0, 1)


async def test_a_name_with_public_addresses_keeps_them_in_order() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["2606:4700::1111", "8.8.8.8", "8.8.8.8", "64:ff9b::808:808"]

    found = await checked_addresses("hooks.example.com", 443, PUBLIC_HTTPS, resolve)
    assert found == ["2606:4700::1111", "8.8.8.8", "64:ff9b::808:808"]


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com",
        "https://example.com/hook?token=1#part",
        "HTTPS://Hooks.Example.COM:8443/",
        "https://example.com:443/",
        "https://bücher.example/",
        "https://xn--bcher-kva.example/",
        "https://a_b.example.com/@127.0.0.1",
        "https://1.example.com/",
        "https://0x7f.example/",
        "https://8.8.8.8/",
        "https://[2606:4700::1111]:8443/",
        "https://[64:ff9b::8.8.8.8]/",
    ],
)
def test_public_addresses_are_allowed(url: str) -> None:
    check_url(url)


def test_http_needs_permission() -> None:
    with pytest.raises(WebhookAddressRefused, match="https://"):
        check_url("http://example.com/")
    with pytest.raises(WebhookAddressRefused, match="https://"):
        check_url("http://example.com/", Policy(allow_private=True))
    check_url("http://example.com/", Policy(allow_http=True))


def test_a_development_policy_allows_private_addresses_but_not_those_of_cloud_metadata() -> None:
    policy = Policy(allow_private=True)
    for host in ("localhost", "db.internal", "127.0.0.1", "10.0.0.1", "192.168.1.1", "[::1]", "[fd00::1]", "8.8.8.8"):
        check_url(f"https://{host}/", policy)
    for host in ("169.254.169.254", "0.0.0.0", "224.0.0.1", "168.63.129.16", "[fe80::1]", "[::]", "[::ffff:10.0.0.1]"):  # noqa: S104
        with pytest.raises(WebhookAddressRefused):
            check_url(f"https://{host}/", policy)


async def test_a_refused_address_ends_the_job_failed() -> None:
    with pytest.raises(WebhookAddressRefused) as refused:
        await send("https://10.0.0.1/", b"{}", {})
    outcome = Failures().outcome_of(refused.value)
    assert isinstance(outcome, Failed)
    assert outcome.error.code == "WebhookAddressRefused"


async def test_a_refusal_does_not_show_where_a_name_leads() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["10.20.30.40"]

    with pytest.raises(WebhookAddressRefused) as refused:
        await send("https://hooks.example.com/", b"{}", {}, resolve=resolve)
    assert "10.20.30.40" not in str(refused.value)


async def test_a_slow_resolver_is_cut_at_the_deadline() -> None:
    async def slow(host: str, port: int) -> Sequence[str]:
        await asyncio.Event().wait()
        return []

    with pytest.raises(WebhookTimeout):
        await send("https://hooks.example.com/", b"{}", {}, resolve=slow, timeout="50ms")


async def test_slow_lookups_hold_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()

    def slow(*_arguments: object, **_options: object) -> list[object]:
        answered.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        sends = [send("https://slow.example", b"", {}, timeout="50ms") for _ in range(50)]
        ended = await asyncio.gather(*sends, return_exceptions=True)
        assert {type(each) for each in ended} == {WebhookTimeout}
        async with asyncio.timeout(30):
            assert await asyncio.to_thread(lambda: "free") == "free"
    finally:
        answered.set()
