"""A peer that cannot be installed costs only its own figures."""

from pathlib import Path

import pytest

from bench.peers.__main__ import setup
from bench.peers.environments import Environments, SetupError
from bench.peers.settings import Peer, Setting, Settings

_NPM = """#!/bin/sh
case "$*" in *broken*) echo "no such package" >&2; exit 1;; esac
"""


@pytest.fixture(autouse=True)
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An npm that knows every package except the one named broken."""
    program = tmp_path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(_NPM)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent))


def _peer(name: str, *packages: str) -> Peer:
    return Peer(name, name.title(), Path("adapter.mjs"), "SELECT 1", packages, "22")


def _settings(*peers: Peer) -> Settings:
    return Settings(Settings.load().sizes, tuple(Setting(peer, "default", "", 1, {}) for peer in peers), ())


def test_a_peer_that_cannot_be_installed_is_left_out_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = _peer("good", "good@1"), _peer("bad", "broken@1")
    environments = Environments(tmp_path)

    setup(_settings(_peer("own"), bad, good), environments)

    assert "warning: not installed, so not measured: Bad" in capsys.readouterr().err
    assert environments.missing(good) is None
    assert "no such package" in (environments.missing(bad) or "")


def test_setup_fails_if_no_peer_can_be_installed(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="no peer could be installed"):
        setup(_settings(_peer("own"), _peer("bad", "broken@1")), Environments(tmp_path))
