"""The Merkle tree of RFC 6962 (section 2.1): its root, and audit paths that prove one leaf.

A leaf and a node are hashed with different prefixes, so neither can be passed off as the other.
"""

from collections.abc import Sequence

from apps.passports.canonical import sha256

_LEAF, _NODE = b"\x00", b"\x01"


def leaf_hash(leaf: bytes) -> bytes:
    return sha256(_LEAF + leaf)


def root(leaves: Sequence[bytes]) -> bytes:
    return _root([leaf_hash(leaf) for leaf in leaves])


def audit_path(index: int, leaves: Sequence[bytes]) -> list[bytes]:
    """The hashes that, with the leaf, give the root; the lowest first."""
    if not 0 <= index < len(leaves):
        raise IndexError(f"there is no leaf {index} among {len(leaves)}")
    return _path(index, [leaf_hash(leaf) for leaf in leaves])


def proves(root: bytes, leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> bool:
    """Whether the path proves that the leaf is the one at `index` in a tree of `size` leaves with this root."""
    if not 0 <= index < size:
        return False
    found, rest, last, steps = leaf_hash(leaf), index, size - 1, list(path)
    while last > 0:
        if rest % 2 or rest < last:
            if not steps:
                return False
            other = steps.pop(0)
            found = sha256(_NODE + other + found) if rest % 2 else sha256(_NODE + found + other)
        rest, last = rest // 2, last // 2
    return not steps and found == root


def _root(hashes: Sequence[bytes]) -> bytes:
    if not hashes:
        return sha256(b"")
    if len(hashes) == 1:
        return hashes[0]
    split = _split(len(hashes))
    return sha256(_NODE + _root(hashes[:split]) + _root(hashes[split:]))


def _path(index: int, hashes: Sequence[bytes]) -> list[bytes]:
    if len(hashes) == 1:
        return []
    split = _split(len(hashes))
    if index < split:
        return [*_path(index, hashes[:split]), _root(hashes[split:])]
    return [*_path(index - split, hashes[split:]), _root(hashes[:split])]


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << ((size - 1).bit_length() - 1)
