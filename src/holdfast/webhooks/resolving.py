"""Finds the IP addresses of a receiver, once per attempt, and checks each of them."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from ipaddress import ip_address

from holdfast.webhooks.policy import Policy
from holdfast.webhooks.url import check_address, literal_address

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Takes a host name and a port and returns IP addresses. Raises OSError if there are none."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """Ask the operating system, in a separate thread.

    A receiver can make its name slow to look up, and nothing stops the lookup. In the event loop's pool of threads it
    would hold up everything else that uses the pool, and the end of the program.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[Sequence[str]] = loop.create_future()

    def look_up() -> None:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
            tell = partial(answer.set_result, [str(entry[4][0]) for entry in found])
        except (OSError, UnicodeError) as error:
            tell = partial(answer.set_exception, error)
        # The loop is closed if the program has ended in the meantime.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: answer.done() or tell())

    threading.Thread(target=look_up, name="holdfast-webhook-lookup", daemon=True).start()
    return await answer


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
