"""The demonstration, run as in a fresh clone of the repository."""

import re
import shutil
from pathlib import Path

import pytest

from tests.apps.invoicing.processes import finished

pytestmark = [pytest.mark.postgres, pytest.mark.long, pytest.mark.timeout(300)]


async def test_the_demonstration_runs_to_its_end_on_eighty_columns() -> None:
    ended = await finished("demo", columns=80)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    # The demonstration uses shorter times than the defaults, and says so.
    assert "leases run out: 3 s here, 60 s by default" in ended.stdout
    numbers = re.findall(r"^20\d\d-(\d{5}) .* (\d+)$", ended.stdout, re.MULTILINE)
    assert [int(number) for number, _ in numbers] == list(range(1, 13))
    assert all(int(mails) >= 1 for _, mails in numbers)
    # Every mail that arrived is shown; a mail that arrived twice is shown twice.
    mails = re.findall(r"^\S+@\S+\.example +Invoice 20\d\d-(\d{5}) +20\d\d-(\d{5})\.pdf$", ended.stdout, re.MULTILINE)
    assert {int(number) for number, _ in mails} == set(range(1, 13))
    assert all(number == attached for number, attached in mails)
    assert len(mails) == sum(int(come) for _, come in numbers)
    found = re.search(r"is kept: (.+)$", ended.stdout)
    assert found is not None
    kept = Path(found[1])
    try:
        assert content(kept).startswith(b"%PDF")
    finally:
        shutil.rmtree(kept.parent)
    assert max(len(line) for line in ended.stdout.splitlines()[:-1]) <= 80


def content(path: Path) -> bytes:
    return path.read_bytes()
