"""Which secrets are found in what was said."""

from holdfast_lab.faults.cases.secrets import Canaries

CANARIES = Canaries("pass", "broker", "card", "token", "run")


def test_each_secret_is_found_by_its_name() -> None:
    assert CANARIES.found_in("the token and the card") == ["payload", "header"]
    assert CANARIES.found_in("nothing") == []


def test_what_is_allowed_is_not_found_and_the_rest_is() -> None:
    assert CANARIES.found_in("pass card", allowed=frozenset({"payload"})) == ["password"]
