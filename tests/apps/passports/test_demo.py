"""The demonstration, run as in a fresh clone of the repository."""

import asyncio
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from apps.passports.reading import read_qr

pytestmark = [pytest.mark.postgres, pytest.mark.long, pytest.mark.timeout(300)]

ROOT = Path(__file__).parents[3]


async def test_the_demonstration_runs_to_its_end_on_eighty_columns() -> None:
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-m", "apps.passports", "demo"],
        env={**os.environ, "COLUMNS": "80", "BPC_SIGNING_KEY": "not for the demo"},
        cwd=ROOT, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = re.findall(
        r"^(.+?)  Battery (\d)  ([0-9a-f]{8})  genuine  reads back  3 of 3 +(\d+)$", ended.stdout, re.MULTILINE
    )
    assert sorted((tenant, int(number)) for tenant, number, *_ in rows) == [
        (tenant, number) for tenant in ("Nordic Cells AS", "Volta Pack GmbH") for number in range(1, 7)
    ]
    assert all(int(attempts) >= 3 for *_, attempts in rows)
    assert "verified: every passport and every webhook is genuine" in ended.stdout
    found = re.search(r"^One of the labels: (.+)$", ended.stdout, re.MULTILINE)
    assert found is not None
    try:
        assert f"BPC1|pv={rows[0][2]}" in label_text(Path(found[1]))
    finally:
        shutil.rmtree(Path(found[1]).parent)
    assert max(len(line) for line in ended.stdout.splitlines() if "/" not in line) <= 80


def label_text(label: Path) -> str:
    return read_qr(label.read_bytes())
