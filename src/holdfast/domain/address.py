"""Addresses of servers: the hosts of a database, and a form without the password that is safe to show."""

import re
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

# A password may contain anything, even an unquoted @ or //, so it ends at the last @ before the next address. The
# exception is advice on how to write an address. The limit keeps the time for a hostile text linear.
_LOGIN = re.compile(r"((?://|embedded:)[^\s:/?#@]*:)(?!password@host:port)(?:(?!\w://).){0,2000}@")
_OPTION = re.compile(r"(\b(?:password|sslpassword|passfile)=)(?:'[^']*'|[^&\s'\"]*)", re.IGNORECASE)


class MaskedAddress(str):
    """An address whose repr has no password: debug pages and error reports show the variables of each frame."""

    __slots__ = ()

    def __repr__(self) -> str:
        return repr(without_password(str(self)))


def without_password(text: str) -> str:
    """An address of any server, or a text that quotes some, with … in place of passwords. Safe to show and to log."""
    return _OPTION.sub(r"\1…", _LOGIN.sub(r"\1…@", text))


def without_driver(url: str) -> str:
    """The libpq form of a SQLAlchemy address such as postgresql+asyncpg://…?ssl=require."""
    scheme, plus, rest = url.partition("+")
    driver, slashes, place = rest.partition("://")
    if not (plus and slashes and scheme in ("postgresql", "postgres") and driver.isidentifier()):
        return url
    return re.sub(r"([?&])ssl=", r"\1sslmode=", f"{scheme}://{place}")


def each_host(url: str) -> tuple[str, ...]:
    """One PostgreSQL address for each host. Raises ValueError if the address cannot be parsed.

    Several hosts are written as in libpq: postgresql://ann@one:5432,two:5432/shop, or ?host=one,two&port=5432,5433.
    """
    parts = urlsplit(url)
    user, at, hosts = parts.netloc.rpartition("@")
    if hosts:
        places = hosts.split(",")
        for place in places:
            _check_place(place, is_alone=len(places) == 1)
        return tuple(urlunsplit(parts._replace(netloc=f"{user}{at}{place}")) for place in places)
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    names, ports = options.pop("host", "").split(","), options.pop("port", "").split(",")
    if len(ports) not in (1, len(names)) or not all(port.isdecimal() for port in ports if port):
        raise ValueError("give one port, or one for each host")
    if len(names) == 1:
        return (url,)
    ports = ports * len(names) if len(ports) == 1 else ports
    return tuple(
        urlunsplit(parts._replace(query=urlencode(options | {"host": name} | ({"port": port} if port else {}))))
        for name, port in zip(names, ports, strict=True)
    )


def _check_place(place: str, *, is_alone: bool) -> None:
    if urlsplit(f"//{place}").port == 0 or not (place or is_alone):
        raise ValueError("a host is missing, or its port is 0")
