"""Which secrets are found in a text."""

from holdfast_lab.faults.cases.secrets import Canaries

CANARIES = Canaries("pass", "broker", "card", "token", "run")


def test_each_secret_is_reported_by_name() -> None:
    assert CANARIES.found_in("the token and the card") == ["payload", "header"]
    assert CANARIES.found_in("nothing") == []


def test_allowed_secrets_are_not_reported_but_others_are() -> None:
    assert CANARIES.found_in("pass card", allowed=frozenset({"payload"})) == ["password"]
