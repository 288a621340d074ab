"""Client quotas in the metadata: what may be set for whom, how it is found again, and how it survives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.base.errors import ErrorCode, Refused
from millpond.metadata import quotas as q
from millpond.metadata.features import SUPPORTED, FeatureUpdate, UpgradeType, check_level, decide_update_features
from millpond.metadata.image import Image
from millpond.metadata.records import ClientQuotaRecord, FeatureLevelRecord, QuotaPart
from millpond.metadata.snapshot import records_between, records_of

ALICE = QuotaPart("user", "alice")
ANY_USER = QuotaPart("user", None)
APP = QuotaPart("client-id", "app")
HERE = QuotaPart("ip", "127.0.0.1")


def changes(*parts: QuotaPart, **values: float | None) -> q.EntityChanges:
    return q.EntityChanges(parts, tuple(q.QuotaChange(key, value) for key, value in values.items()))


def alter(image: Image, *wanted: q.EntityChanges, dry: bool = False) -> list[str]:
    """Decide and replay; the verdicts in words."""
    decision = q.decide_alter_quotas(image.quotas, wanted, validate_only=dry)
    image.replay_all(decision.records)
    return ["ok" if each.ok else f"{each.code.name} {each.message}" for each in decision.reply]


def test_quotas_are_set_changed_and_taken_away() -> None:
    image = Image()
    both = changes(ALICE, APP, producer_byte_rate=1024, request_percentage=12.5)
    assert alter(image, both, changes(ANY_USER, consumer_byte_rate=7)) == ["ok", "ok"]
    assert image.quotas.of == {
        (APP, ALICE): {"producer_byte_rate": 1024, "request_percentage": 12.5},
        (ANY_USER,): {"consumer_byte_rate": 7},
    }
    version = image.quotas.version
    # The same entity in another order; what is so already is not written again.
    assert alter(image, changes(APP, ALICE, producer_byte_rate=1024, request_percentage=None)) == ["ok"]
    assert image.quotas.version == version + 1
    assert alter(image, changes(ANY_USER, consumer_byte_rate=None, producer_byte_rate=None)) == ["ok"]
    assert image.quotas.of == {(APP, ALICE): {"producer_byte_rate": 1024}}


def test_only_asked_whether_it_could_be_nothing_changes() -> None:
    image = Image()
    assert alter(image, changes(ALICE, producer_byte_rate=1), dry=True) == ["ok"]
    assert image.quotas.of == {}


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (changes(producer_byte_rate=1), "names no entity"),
        (changes(QuotaPart("team", "a"), producer_byte_rate=1), "not to 'team'"),
        (changes(ALICE, ANY_USER, producer_byte_rate=1), "user appears twice"),
        (changes(ALICE, HERE, connection_creation_rate=1), "cannot be combined"),
        (
            changes(HERE, producer_byte_rate=1),
            "unknown quota 'producer_byte_rate'; the quotas are connection_creation_rate",
        ),
        (changes(QuotaPart("ip", "example.com"), connection_creation_rate=1), "'example.com' is not an IP address"),
        (changes(ALICE, connection_creation_rate=1), "unknown quota 'connection_creation_rate'"),
        (changes(ALICE, producer_byte_rate=0), "must be greater than 0"),
        (changes(ALICE, producer_byte_rate=-1), "must be greater than 0"),
        (changes(ALICE, request_percentage=float("nan")), "must be greater than 0"),
        (changes(ALICE, request_percentage=float("inf")), "must be greater than 0"),
        (changes(ALICE, producer_byte_rate=1.5), "must be a whole number"),
        (changes(HERE, connection_creation_rate=float(1 << 31)), "must be at most 2147483647"),
        (
            q.EntityChanges(
                (ALICE,), (q.QuotaChange("request_percentage", 1), q.QuotaChange("request_percentage", 2))
            ),
            "appears more than once",
        ),
    ],
)
def test_what_is_refused_changes_nothing_and_spoils_no_other(wanted: q.EntityChanges, why: str) -> None:
    image = Image()
    refused, ok = alter(image, wanted, changes(APP, producer_byte_rate=5))
    assert refused.startswith("INVALID_REQUEST")
    assert why in refused
    assert ok == "ok"
    assert image.quotas.of == {(APP,): {"producer_byte_rate": 5}}


def test_an_entity_that_is_named_twice_is_not_changed_at_all() -> None:
    image = Image()
    said = alter(image, changes(ALICE, APP, producer_byte_rate=1), changes(APP, ALICE, producer_byte_rate=2))
    assert all("appears more than once in the request" in each for each in said)
    assert image.quotas.of == {}


def test_there_are_not_more_entities_than_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(q, "ENTITIES_MAX", 2)
    image = Image()
    wanted = [changes(QuotaPart("user", name), producer_byte_rate=1) for name in "abc"]
    assert alter(image, *wanted) == [
        "ok",
        "ok",
        "POLICY_VIOLATION the cluster has reached its limit of 2 entities with quotas",
    ]
    assert alter(image, changes(QuotaPart("user", "a"), producer_byte_rate=2)) == ["ok"]


def found(image: Image, *wanted: q.Wanted, strict: bool = False) -> set[q.Entity]:
    return {entity for entity, _ in q.find_quotas(image.quotas, wanted, strict=strict)}


def test_quotas_are_found_by_their_parts() -> None:
    image = Image()
    entities = [(ALICE,), (ANY_USER,), (APP, ALICE), (APP,), (HERE,)]
    for entity in entities:
        image.replay(ClientQuotaRecord(entity, "k", 1.0))
    assert found(image) == set(entities)
    assert found(image, strict=True) == set()
    assert found(image, q.Wanted("user", "alice")) == {(ALICE,), (APP, ALICE)}
    assert found(image, q.Wanted("user", "alice"), strict=True) == {(ALICE,)}
    assert found(image, q.Wanted("user")) == {(ANY_USER,)}
    assert found(image, q.Wanted("user", is_any=True), strict=True) == {(ALICE,), (ANY_USER,)}
    both = (q.Wanted("user", is_any=True), q.Wanted("client-id", "app"))
    assert found(image, *both, strict=True) == {(APP, ALICE)}
    for wrong in ((q.Wanted("user"), q.Wanted("user", "a")), (q.Wanted("ip"), q.Wanted("user"))):
        with pytest.raises(Refused):
            found(image, *wrong)
    with pytest.raises(Refused) as refused:
        found(image, q.Wanted("team"))
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


parts = st.builds(QuotaPart, st.sampled_from(["user", "client-id"]), st.sampled_from([None, "a", "b"]))
records = st.builds(
    ClientQuotaRecord,
    st.lists(parts, min_size=1, max_size=2, unique_by=lambda part: part.entity_type).map(tuple),
    st.sampled_from(["x", "y"]),
    st.floats(1, 5),
    st.booleans(),
)


@given(st.lists(records, max_size=12), st.lists(records, max_size=12))
def test_quotas_come_back_from_a_snapshot_and_from_what_lies_between(first: list, second: list) -> None:
    old = Image()
    old.replay_all(first)
    again = Image()
    again.replay_all(list(records_of(old)))
    assert again == old
    new = old.copy()
    new.replay_all(second)
    between = list(records_between(old, new))
    again.replay_all(between)
    assert again == new


def test_a_cluster_with_older_nodes_has_no_quotas_and_one_with_quotas_gets_none() -> None:
    record = ClientQuotaRecord((ALICE,), "producer_byte_rate", 1.0)
    with pytest.raises(Refused, match=r"metadata.version is at 26") as refused:
        check_level((record,), 26)
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
    check_level((record,), 27)
    image = Image()
    image.replay(FeatureLevelRecord("metadata.version", 27))
    image.replay(record)
    lowered = FeatureUpdate("metadata.version", 26, UpgradeType.UNSAFE_DOWNGRADE)
    (verdict,) = decide_update_features(image, [lowered], SUPPORTED).reply
    assert "there are quotas" in str(verdict.message)
    image.replay(ClientQuotaRecord((ALICE,), "producer_byte_rate", remove=True))
    (verdict,) = decide_update_features(image, [lowered], SUPPORTED).reply
    assert verdict.ok
