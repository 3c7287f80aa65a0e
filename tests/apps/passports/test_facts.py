"""Facts from bills of materials, as JSON and as CSV."""

import json
from decimal import Decimal

import pytest

from apps.passports.facts import CSV, JSON, Fact, InvalidDocument, distinct, fields_of, parse_document
from tests.apps.passports.bench import DOCUMENT

TABLE = """\
part,name,material,quantity,mass_kg,recycled_share
CELL-1,,LFP,96,3.2,0.16
CASE-1,"Case, black",steel,,40.5,
"""


def as_json(**changes: object) -> bytes:
    return json.dumps({**DOCUMENT, **changes}).encode()


def test_json_has_attributes_and_components() -> None:
    assert parse_document(as_json(), JSON) == [
        Fact("attribute", "capacity_kwh", {"value": 75.5}),
        Fact("attribute", "is_second_life", {"value": False}),
        Fact("attribute", "mass_kg", {"value": 420}),
        Fact("attribute", "model", {"value": "BX-75"}),
        Fact("component", "CASE-1", {"part": "CASE-1", "name": "Case", "quantity": 1, "mass_kg": 40.5}),
        Fact(
            "component",
            "CELL-1",
            {"part": "CELL-1", "material": "LFP", "quantity": 96, "mass_kg": 3.2, "recycled_share": 0.16},
        ),
    ]


def test_csv_has_components_and_an_empty_cell_is_no_value() -> None:
    assert parse_document(TABLE.encode(), CSV) == [
        Fact(
            "component",
            "CASE-1",
            {"part": "CASE-1", "name": "Case, black", "material": "steel", "quantity": 1, "mass_kg": 40.5},
        ),
        Fact(
            "component",
            "CELL-1",
            {"part": "CELL-1", "material": "LFP", "quantity": 96, "mass_kg": 3.2, "recycled_share": 0.16},
        ),
    ]


def test_a_byte_order_mark_and_windows_line_ends_do_not_matter() -> None:
    assert parse_document(b"\xef\xbb\xbf" + TABLE.replace("\n", "\r\n").encode(), CSV) == parse_document(
        TABLE.encode(), CSV
    )


def test_the_same_component_has_the_same_hash_in_json_and_csv() -> None:
    from_json = parse_document(as_json(attributes={}), JSON)[1]
    from_csv = parse_document(TABLE.encode(), CSV)[1]
    assert from_json.payload_hash == from_csv.payload_hash


@pytest.mark.parametrize(
    ("content", "media_type", "message"),
    [
        (b"{", JSON, "the document cannot be read"),
        (b"[]", JSON, "the document: "),
        (b"\xff\xfe", CSV, "the document cannot be read"),
        (b'{"schema_version": 1, "schema_version": 1}', JSON, "an object has the same name twice"),
        (b'{"schema_version": 1}', JSON, "the document has no facts"),
        (as_json(schema_version=2), JSON, "schema_version: Input should be less than or equal to 1"),
        (as_json(attributes={"A": 1}), JSON, "attributes.A"),
        (as_json(attributes={"a": None}), JSON, "attributes.a"),
        (as_json(attributes={"a": "nul \x00"}), JSON, "attributes.a"),
        (as_json(attributes={"a": "\ud800"}), JSON, "."),
        (as_json(components=[{"part": ""}]), JSON, "components.0.part"),
        (as_json(components=[{"part": "A", "mass": 1}]), JSON, "components.0.mass: Unexpected keyword argument"),
        (as_json(components=[{"part": "A", "quantity": 0}]), JSON, "components.0.quantity"),
        (as_json(components=[{"part": "A", "quantity": "1"}]), JSON, "components.0.quantity"),
        (as_json(components=[{"part": "A", "recycled_share": 1.1}]), JSON, "components.0.recycled_share"),
        (as_json(components=[{"part": "A"}, {"part": "A", "mass_kg": 1}]), JSON, "two different facts for the comp"),
        (b'{"schema_version": 1, "attributes": {"a": 1e999}}', JSON, "attributes.a"),
        (b"part,mass_kg\nA", CSV, "row 1 does not have as many cells as the header"),
        (b"part,mass_kg\nA,1,2", CSV, "row 1 does not have as many cells as the header"),
        (b"part,mass_kg\nA,heavy", CSV, "0.mass_kg"),
        (b"part,weight\nA,1", CSV, "0.weight"),
        (b'part\n"A', CSV, "the document cannot be read"),
        (b"", CSV, "the document has no facts"),
        (b"[" * 100_000, JSON, "the document cannot be read"),
    ],
)
def test_another_document_is_refused_in_one_line(content: bytes, media_type: str, message: str) -> None:
    with pytest.raises(InvalidDocument) as raised:
        parse_document(content, media_type)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_equal_facts_of_several_documents_count_once_and_different_ones_are_refused() -> None:
    one, other = Fact("attribute", "a", {"value": 1}), Fact("attribute", "a", {"value": 2})
    assert distinct([one, one]) == [one]
    with pytest.raises(InvalidDocument, match="there are two different facts for the attribute a"):
        distinct([one, other])


def test_rules_see_attributes_and_the_sums_of_the_components() -> None:
    fields = fields_of(parse_document(as_json(), JSON))
    assert fields == {
        "capacity_kwh": Decimal("75.5"),
        "is_second_life": False,
        "mass_kg": Decimal(420),
        "model": "BX-75",
        "components.count": Decimal(2),
        "components.mass_kg": Decimal("347.7"),
    }
