"""Finds the IP addresses of a receiver, once per attempt, and checks each of them."""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address

from holdfast.webhooks.policy import Policy
from holdfast.webhooks.url import check_address, literal_address

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Takes a host name and a port and returns IP addresses. Raises OSError if there are none."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the operating system, in a thread of the event loop's executor."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
    return [str(entry[4][0]) for entry in found]


async def checked_addresses(host: str, port: int, policy: Policy, resolve: Resolve) -> Sequence[str]:
    """Return the addresses in the order to try. One that is not allowed refuses the whole host."""
    if literal_address(host) is not None:
        return [host]
    found = list(dict.fromkeys(await resolve(host, port)))
    for text in found:
        check_address(host, ip_address(text), policy)
    if not found:
        raise socket.gaierror(socket.EAI_NONAME, "The host has no address")
    return found
