"""Names of certificates to names of users: the plays are those of Kafka's own documentation and tests."""

from __future__ import annotations

import pytest

from millpond.base.settings import SettingError
from millpond.config.principal_rules import principal_rules

RULES = (
    r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/, "
    r"RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L, "
    r"RULE:^cn=(.*?),ou=(.*?),dc=(.*?),dc=(.*?)$/$1@$2/U, "
    r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U, "
    r"DEFAULT"
)


@pytest.mark.parametrize(
    ("name", "user"),
    [
        ("CN=Duke,OU=ServiceUsers,O=Org,C=US", "Duke"),
        ("CN=Duke,OU=SME,O=mycp,L=Fulton,ST=MD,C=US", "duke@sme"),
        ("cn=duke,ou=sme,dc=mycp,dc=com", "DUKE@SME"),
        ("cN=duke,OU=JavaSoft,O=Sun Microsystems", "DUKE"),
        ("OU=JavaSoft,O=Sun Microsystems,C=US", "OU=JavaSoft,O=Sun Microsystems,C=US"),
    ],
)
def test_the_first_rule_that_matches_counts(name: str, user: str) -> None:
    assert principal_rules(RULES).user_of(name) == user


@pytest.mark.parametrize("text", ["", "DEFAULT", " DEFAULT "])
def test_without_a_rule_a_name_is_taken_as_it_is(text: str) -> None:
    assert principal_rules(text).user_of("CN=a b,O=c") == "CN=a b,O=c"


def test_a_name_that_no_rule_knows_is_nobodys() -> None:
    assert principal_rules("RULE:^CN=(.*?),OU=x$/$1/").user_of("CN=a,OU=y") is None


def test_a_pattern_has_to_match_the_whole_name() -> None:
    # Otherwise a user who can choose part of the name could pose as anyone.
    assert principal_rules("RULE:CN=([a-z]+)/$1/").user_of("CN=eve,CN=admin") is None


def test_a_slash_and_a_dollar_may_stand_for_themselves() -> None:
    assert principal_rules(r"RULE:CN=(.*)\/(.*)/$2\$$1/").user_of("CN=a/b") == "b$a"


@pytest.mark.parametrize("text", ["RULE:a/b", "RULE:(/x/", "RULE:a/$1/", "DEFAULTS", "RULE:a/b/X", "x,DEFAULT"])
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(SettingError):
        principal_rules(text)
