"""Canonical JSON, the Merkle tree and Base32, against the vectors of their specifications."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.passports import merkle
from apps.passports.base32 import from_base32, to_base32
from apps.passports.canonical import NotCanonical, canonical, read_json

# Appendix B of RFC 8785: the bits of a double, and its text.
NUMBERS = {
    "0000000000000000": "0",
    "8000000000000000": "0",
    "0000000000000001": "5e-324",
    "8000000000000001": "-5e-324",
    "7fefffffffffffff": "1.7976931348623157e+308",
    "ffefffffffffffff": "-1.7976931348623157e+308",
    "4340000000000000": "9007199254740992",
    "c340000000000000": "-9007199254740992",
    "4430000000000000": "295147905179352830000",
    "44b52d02c7e14af5": "9.999999999999997e+22",
    "44b52d02c7e14af6": "1e+23",
    "44b52d02c7e14af7": "1.0000000000000001e+23",
    "444b1ae4d6e2ef4e": "999999999999999700000",
    "444b1ae4d6e2ef4f": "999999999999999900000",
    "444b1ae4d6e2ef50": "1e+21",
    "3eb0c6f7a0b5ed8c": "9.999999999999997e-7",
    "3eb0c6f7a0b5ed8d": "0.000001",
    "41b3de4355555553": "333333333.3333332",
    "41b3de4355555554": "333333333.33333325",
    "41b3de4355555555": "333333333.3333333",
    "41b3de4355555556": "333333333.3333334",
    "41b3de4355555557": "333333333.33333343",
    "becbf647612f3696": "-0.0000033333333333333333",
    "43143ff3c1cb0959": "1424953923781206.2",
}
# The leaves and roots of the reference implementation of RFC 6962.
LEAVES = [
    bytes.fromhex(leaf)
    for leaf in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = [
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]


@pytest.mark.parametrize(("bits", "text"), NUMBERS.items())
def test_a_number_is_written_as_in_rfc_8785(bits: str, text: str) -> None:
    (number,) = struct.unpack(">d", bytes.fromhex(bits))
    assert canonical(number) == text.encode()
    assert canonical(read_json(text)) == text.encode()


@pytest.mark.parametrize("bits", ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"])
def test_what_is_no_number_is_refused(bits: str) -> None:
    with pytest.raises(NotCanonical):
        canonical(struct.unpack(">d", bytes.fromhex(bits))[0])


def test_the_example_of_rfc_8785_is_written_as_there() -> None:
    given = (
        r'{"numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],'
        r' "string": "\u20ac$\u000F\u000aA' + r"'\u0042\u0022\u005c\\\"\/" + '", "literals": [null, true, false]}'
    )
    expected = (
        '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        r'"string":"€$\u000f\nA' + r"'B\"\\\\\"/" + '"}'
    )
    assert canonical(read_json(given)) == expected.encode()


def test_names_are_sorted_by_utf_16() -> None:
    names = ["\r", "1", "\x80", "ö", "€", "\U0001f600", "\ufb33"]
    text = canonical({name: number for number, name in enumerate(reversed(names))}).decode()
    places = [text.index(f'"{name}"') for name in names if name != "\r"]
    assert all(one < other for one, other in pairwise(places))


@pytest.mark.parametrize("text", ['{"a": 1, "a": 1}', "NaN", "[Infinity]", "-Infinity", "{", "\ufeff{}"])
def test_what_is_no_strict_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


def test_a_lone_surrogate_is_refused() -> None:
    with pytest.raises(NotCanonical):
        canonical(read_json(r'"\ud800"'))


@pytest.mark.parametrize("size", range(9))
def test_a_root_is_that_of_rfc_6962(size: int) -> None:
    assert merkle.root(LEAVES[:size]).hex() == ROOTS[size]


@pytest.mark.parametrize("size", [*range(1, 18), 31, 32, 33])
def test_a_path_proves_its_own_leaf_at_its_own_place_and_nothing_else(size: int) -> None:
    leaves = [bytes([number]) for number in range(size)]
    root = merkle.root(leaves)
    for index in range(size):
        path = merkle.audit_path(index, leaves)
        assert merkle.proves(root, leaves[index], index, size, path)
        assert not merkle.proves(root, b"another", index, size, path)
        assert not merkle.proves(root, leaves[index], index, size, [*path, root])
        assert not merkle.proves(root, leaves[index], size, size, path)
        if size > 1:
            assert not merkle.proves(root, leaves[index], index, size, path[:-1])
            assert not merkle.proves(root, leaves[index], (index + 1) % size, size, path)


def test_a_path_of_rfc_6962_is_lowest_first() -> None:
    leaves = LEAVES[:7]
    assert merkle.audit_path(6, leaves) == [merkle.root(leaves[4:6]), merkle.root(leaves[:4])]


def test_a_node_cannot_be_passed_off_as_a_leaf() -> None:
    node = merkle.leaf_hash(b"one") + merkle.leaf_hash(b"two")
    assert merkle.root([node]) != merkle.root([b"one", b"two"])


@given(st.binary(max_size=80))
def test_base32_is_reversible(content: bytes) -> None:
    text = to_base32(content)
    assert from_base32(text) == content
    assert "=" not in text


@pytest.mark.parametrize("text", ["A", "MY======", "my", "MZ", "M1", "é", "AAA"])
def test_base32_has_one_spelling(text: str) -> None:
    with pytest.raises(ValueError, match="is not Base32"):
        from_base32(text)
