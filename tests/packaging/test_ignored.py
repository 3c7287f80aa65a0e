"""Files that the project creates in a developer's folder must not be committed."""

import shutil
import subprocess
from pathlib import Path

import pytest

from apps.invoicing.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("git") is None or not (ROOT / ".git").exists(), reason="is no working copy")
def test_git_ignores_the_files_of_the_invoicing_service() -> None:
    folder = Settings.model_fields["files_url"].default.removeprefix("file:")
    asked = subprocess.run(["git", "check-ignore", f"{folder}/invoice.pdf"], cwd=ROOT, capture_output=True, check=False)
    assert asked.returncode == 0
