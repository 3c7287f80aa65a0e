"""README.md lists every variable with its default, and every route."""

import re
from pathlib import Path

from apps.passports.api import create_api
from apps.passports.settings import Settings

README = (Path(__file__).parents[4] / "apps/passports/README.md").read_text(encoding="utf-8")


def test_every_variable_is_listed_with_its_default() -> None:
    listed = {}
    for names, defaults, effect in re.findall(r"^\| (`BPC_.+?) \| (.+?) \| (.+?) \|$", README, re.MULTILINE):
        assert effect
        for name, default in zip(names.split(", "), defaults.split(", "), strict=True):
            listed[name.strip("`").lower()] = default.strip("`")
    defaults = {name: field.get_default(call_default_factory=True) for name, field in Settings.model_fields.items()}
    assert listed == {name: written(default) for name, default in defaults.items()}


def written(default: object) -> str:
    if isinstance(default, bool):
        return str(default).lower()
    return "unset" if default is None else str(default or "empty")


def test_every_route_is_listed() -> None:
    listed = set(re.findall(r"`(GET|POST|PUT|DELETE) (/\S+?)`", README))
    paths = create_api(Settings.load()).openapi()["paths"]
    found = {(method.upper(), path) for path, item in paths.items() for method in item}
    assert listed == found | {("GET", "/verify")}
