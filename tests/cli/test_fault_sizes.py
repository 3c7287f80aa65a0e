"""`holdfast faults --size` changes the size of cases."""

import pytest

from tests.cli.conftest import Cli


@pytest.mark.parametrize("given", ["minutes", "minutes=", "minutes=long"])
def test_a_size_that_is_not_a_number_is_refused(cli: Cli, given: str) -> None:
    done = cli.run("faults", "--list", "--size", given)
    assert done.code == 2
    assert f"size: {given!r} is not understood; write it like minutes=2" in done.one_error_line()
