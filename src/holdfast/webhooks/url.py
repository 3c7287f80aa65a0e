"""What the address of a receiver may look like. No network is needed; resolving.py checks where a name leads."""

import re
from ipaddress import IPv4Address, IPv6Address

import httpx

from holdfast.webhooks.addresses import Address, is_private, is_public
from holdfast.webhooks.errors import WebhookAddressRefused
from holdfast.webhooks.policy import PUBLIC_HTTPS, Policy

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"(?=.{{1,253}}\Z){_LABEL}(?:\.{_LABEL})*")
_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)\.?", re.DOTALL)
"""A host that some parsers take for an IPv4 address, as in 127.1, 0x7f.1 and 2130706433."""

_LOCAL = re.compile(r"[^.]*|.*\.(?:localhost|local|localdomain|internal|intranet|lan|home\.arpa)")
_PORT = re.compile(r"[^/?#]*//[^/?#]*?(?::(?P<port>[^/?#:\]]*))?(?:[/?#].*)?", re.DOTALL)


def check_url(url: str, policy: Policy = PUBLIC_HTTPS) -> None:
    """Raise WebhookAddressRefused if `send` would refuse this address without asking DNS. Use it at registration."""
    target_of(url, policy)


def target_of(url: str, policy: Policy) -> httpx.URL:
    """Parse the address, once for the check and for the request: two parsers might disagree about the host."""
    try:
        target = httpx.URL(url)
    except (httpx.InvalidURL, TypeError, ValueError):
        raise WebhookAddressRefused("the address of the webhook is not a valid URL") from None
    if target.scheme != "https" and not (target.scheme == "http" and policy.allow_http):
        raise WebhookAddressRefused("the address of a webhook must start with https://")
    if target.userinfo:
        raise WebhookAddressRefused("the address of a webhook must not contain a user name or password")
    _check_port(url, target)
    host = host_of(target)
    address = literal_address(host)
    if address is not None:
        check_address(host, address, policy)
    elif not _NAME.fullmatch(host):
        raise WebhookAddressRefused(f"{host[:255]!r} is not the name of a host")
    elif not policy.allow_private and _LOCAL.fullmatch(host):
        raise WebhookAddressRefused(f"{host!r} is the name of a local host; webhooks go to public addresses")
    return target


def host_of(target: httpx.URL) -> str:
    # `target.host` would decode an international name, which can fail.
    return target.raw_host.decode("ascii")


def literal_address(host: str) -> Address | None:
    """The IP address that a host spells out, or None if it is a name. Refuses every other form of an IP address."""
    try:
        if ":" in host and "%" not in host:
            return IPv6Address(host)
        return IPv4Address(host) if _NUMBER.fullmatch(host) else None
    except ValueError:
        raise WebhookAddressRefused(f"{host[:255]!r} is an unusual form of an IP address") from None


def check_address(host: str, address: Address, policy: Policy) -> None:
    # The message does not show the address: customers may see it, and a name can be one of an internal network.
    if not (is_public(address) or (policy.allow_private and is_private(address))):
        raise WebhookAddressRefused(f"{host} is not a public address, or leads to one that is not")


def _check_port(url: str, target: httpx.URL) -> None:
    match = _PORT.fullmatch(url)
    text = match["port"] if match else None
    if not (text is None or re.fullmatch(r"[0-9]{1,5}", text)) or not (target.port is None or 0 < target.port < 65_536):
        raise WebhookAddressRefused("the port of the webhook's address is not a number from 1 to 65535")
