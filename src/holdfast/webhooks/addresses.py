"""Which IP addresses are public. Neighbors: url.py and resolving.py ask."""

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

Address = IPv4Address | IPv6Address

# Python's `is_global` depends on the Python version and counts multicast, 6to4 and others as global.
_NOT_PUBLIC = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",  # this host
            "10.0.0.0/8",
            "100.64.0.0/10",  # carrier-grade NAT, and the metadata service of Alibaba Cloud
            "127.0.0.0/8",
            "168.63.129.16/32",  # looks public, but inside Azure it is the machine's own host
            "169.254.0.0/16",  # link-local, and the metadata service of most clouds
            "172.16.0.0/12",
            "192.0.0.0/24",  # protocol assignments, and the metadata service of Oracle Cloud
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # relays of 6to4
            "192.168.0.0/16",
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/3",  # multicast, reserved, broadcast
        ),
    )
)

# Everything outside is special: loopback, unique local, link-local, multicast, addresses with an IPv4 address inside.
_UNICAST = IPv6Network("2000::/3")
_NOT_UNICAST = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # protocol assignments, such as Teredo and benchmarks
            "2001:db8::/32",  # documentation
            "2002::/16",  # 6to4
            "3fff::/20",  # documentation
        ),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")
_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "127.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
_PRIVATE_V6 = tuple(map(IPv6Network, ("::1/128", "fc00::/7")))


def is_public(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return address.is_global and not any(address in network for network in _NOT_PUBLIC)
    if address in _NAT64:
        # In a network with IPv6 only, every IPv4 host has such an address. It leads to the host inside.
        return is_public(IPv4Address(int(address) & 0xFFFFFFFF))
    return address in _UNICAST and not any(address in network for network in _NOT_UNICAST)


def is_private(address: Address) -> bool:
    """Whether it is a loopback address or one of a private network, and nothing worse."""
    return any(address in network for network in (_PRIVATE if isinstance(address, IPv4Address) else _PRIVATE_V6))
