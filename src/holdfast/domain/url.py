"""Writes the address of a database from its parts. Neighbor: address.py, which reads addresses."""

from collections.abc import Mapping
from itertools import cycle
from urllib.parse import quote, urlencode


def database_url(host: str, port: str, user: str, password: str, database: str, options: Mapping[str, str]) -> str:
    """Any part may be empty, as for libpq. Hosts and ports may be lists with commas."""
    query = dict(options)
    place = ""
    if not host or "/" in host or host.startswith("@"):
        # A folder of sockets, several of them, or the default.
        query |= {name: value for name, value in (("host", host), ("port", port)) if value}
    else:
        hosts = [f"[{name}]" if ":" in name else name for name in host.split(",")]
        pairs = zip(hosts, cycle(port.split(",")), strict=False)
        place = ",".join(f"{name}:{each}" if each else name for name, each in pairs)
    login = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
    netloc = f"{login}@{place}" if login else place
    return f"postgresql://{netloc}/{quote(database, safe='')}" + (f"?{urlencode(query)}" if query else "")
