"""Facts from a document: attributes of a battery and the components of its bill of materials, from JSON or CSV."""

import csv
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from apps.passports.canonical import Json, NotCanonical, canonical, read_json, sha256
from apps.passports.rules import Value

JSON, CSV = "application/json", "text/csv"
ATTRIBUTE, COMPONENT = "attribute", "component"
SCHEMA_VERSION = 1
COMPONENTS = "components"
"""Rules see the components as `components.count` and `components.mass_kg`, their mass times quantity."""

_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)
_NUMBERS = frozenset({"quantity", "mass_kg", "recycled_share"})
_STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

Text = Annotated[str, Field(strict=True, min_length=1, max_length=500, pattern=r"^[^\x00]*$")]
Number = Annotated[float, Field(strict=True)]
Truth = Annotated[bool, Field(strict=True)]
AttributeName = Annotated[str, Field(strict=True, max_length=100, pattern=r"^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$")]


class InvalidDocument(Exception):
    """The document is not a bill of materials. The message says what is wrong, in one line."""


@dataclass(frozen=True, slots=True)
class Fact:
    type: str
    key: str
    payload: dict[str, Json]
    schema_version: int = SCHEMA_VERSION
    payload_text: bytes = field(init=False, repr=False)
    payload_hash: bytes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "payload_text", canonical(self.payload))
        object.__setattr__(self, "payload_hash", sha256(self.payload_text))

    def as_json(self) -> dict[str, Json]:
        """The fact as it stands in a passport. Its canonical form is a leaf of the proof."""
        return {
            "fact_type": self.type,
            "fact_key": self.key,
            "schema_version": self.schema_version,
            "payload": self.payload,
        }


@validated(config=_STRICT, frozen=True, slots=True)
class _Component:
    part: Text
    name: Text | None = None
    material: Text | None = None
    quantity: Annotated[Number, Field(gt=0)] = 1.0
    mass_kg: Annotated[Number, Field(ge=0)] | None = None
    recycled_share: Annotated[Number, Field(ge=0, le=1)] | None = None


@validated(config=_STRICT, frozen=True, slots=True)
class _Document:
    schema_version: Annotated[int, Field(strict=True, ge=SCHEMA_VERSION, le=SCHEMA_VERSION)]
    attributes: dict[AttributeName, Text | Truth | Number] = Field(default_factory=dict)
    components: list[_Component] = Field(default_factory=list)


_DOCUMENT, _COMPONENTS = TypeAdapter(_Document), TypeAdapter(list[_Component])


def parse_document(content: bytes, media_type: str) -> list[Fact]:
    """Return the document's facts, sorted by type and key. Raise InvalidDocument."""
    try:
        document = (
            _DOCUMENT.validate_python(read_json(content))
            if media_type == JSON
            else _Document(SCHEMA_VERSION, components=_COMPONENTS.validate_python(_rows(content)))
        )
        found = [Fact(ATTRIBUTE, name, {"value": value}) for name, value in document.attributes.items()]
        found += [Fact(COMPONENT, each.part, _present(each)) for each in document.components]
        for fact in found:
            canonical(fact.key)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"])) or "the document"
        raise InvalidDocument(f"{where}: {problem['msg']}") from error
    except (ValueError, csv.Error, RecursionError) as error:
        raise InvalidDocument(f"the document cannot be read: {error}") from error
    if not found:
        raise InvalidDocument("the document has no facts")
    return distinct(found)


def distinct(facts: Iterable[Fact]) -> list[Fact]:
    """Sort by type and key, and drop repetitions. Raise InvalidDocument if two facts contradict each other."""
    by_key: dict[tuple[str, str], Fact] = {}
    for fact in facts:
        known = by_key.setdefault((fact.type, fact.key), fact)
        if known.payload_hash != fact.payload_hash or known.schema_version != fact.schema_version:
            raise InvalidDocument(f"there are two different facts for the {fact.type} {fact.key}")
    return [by_key[key] for key in sorted(by_key)]


def fields_of(facts: Iterable[Fact]) -> dict[str, Value]:
    """The fields that rules see."""
    fields: dict[str, Value] = {}
    count, mass = 0, Decimal(0)
    for fact in facts:
        if fact.type == ATTRIBUTE:
            fields[fact.key] = _value(fact.payload["value"])
        else:
            count += 1
            mass += _decimal(fact.payload["quantity"]) * _decimal(fact.payload.get("mass_kg", 0))
    return {**fields, f"{COMPONENTS}.count": Decimal(count), f"{COMPONENTS}.mass_kg": mass}


def _present(component: _Component) -> dict[str, Json]:
    values: dict[str, Json] = {
        "part": component.part,
        "name": component.name,
        "material": component.material,
        "quantity": component.quantity,
        "mass_kg": component.mass_kg,
        "recycled_share": component.recycled_share,
    }
    return {name: value for name, value in values.items() if value is not None}


def _rows(content: bytes) -> list[dict[str, object]]:
    """The rows of a CSV file with a header. An empty cell is an absent value."""
    reader = csv.DictReader(io.StringIO(content.decode("utf-8-sig"), newline=""), strict=True)
    rows = []
    for number, row in enumerate(reader, 1):
        if None in row or None in row.values():
            raise ValueError(f"row {number} does not have as many cells as the header")
        rows.append({name: _cell(name, cell.strip()) for name, cell in row.items() if cell.strip()})
    return rows


def _cell(name: str, text: str) -> object:
    return float(text) if name in _NUMBERS and _NUMBER.fullmatch(text) else text


def _value(value: Json) -> Value:
    return value if isinstance(value, bool | str) else _decimal(value)


def _decimal(value: Json) -> Decimal:
    """The number as it is written in canonical JSON."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NotCanonical(f"{value!r} is not a number")
    return Decimal(canonical(value).decode())
