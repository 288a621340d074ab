"""New levels of features: who may ask for which, and what stands in the way."""

from uuid import UUID

import pytest

from millpond.base.errors import ErrorCode
from millpond.metadata.features import (
    SUPPORTED,
    FeatureUpdate,
    Levels,
    UpgradeType,
    decide_update_features,
    features_to_record,
    level_records,
)
from millpond.metadata.image import Image
from millpond.metadata.records import BrokerFeature, FeatureLevelRecord, RegisterBrokerRecord

OLDER = {**SUPPORTED, "metadata.version": Levels(25, 25)}


@pytest.fixture
def image() -> Image:
    made = Image()
    made.replay_all(level_records(OLDER))
    return made


def join(image: Image, broker_id: int, features: tuple[BrokerFeature, ...] = ()) -> None:
    image.replay(RegisterBrokerRecord(broker_id, UUID(int=broker_id), broker_id, (), features=features))


def ask(image: Image, *updates: FeatureUpdate, is_dry: bool = False) -> tuple[tuple[object, ...], list[str]]:
    decision = decide_update_features(image, updates, SUPPORTED, is_dry=is_dry)
    return decision.records, [f"{each.code.name} {each.message}" if each.message else "ok" for each in decision.reply]


RAISED = FeatureUpdate("metadata.version", 26)


def test_a_level_is_raised_when_every_registered_node_supports_it(image: Image) -> None:
    join(image, 1, features_to_record(SUPPORTED))
    join(image, 2)
    join(image, 3)
    assert ask(image, RAISED) == (
        (),
        [
            "INVALID_UPDATE_VERSION node 2 (and 1 more) supports metadata.version 25: upgrade it first, "
            "or unregister it if it was removed"
        ],
    )
    join(image, 2, features_to_record(SUPPORTED))
    join(image, 3, features_to_record(SUPPORTED))
    assert ask(image, RAISED, is_dry=True) == ((), ["ok"])
    assert ask(image, RAISED) == ((FeatureLevelRecord("metadata.version", 26),), ["ok"])
    image.replay(FeatureLevelRecord("metadata.version", 26))
    assert ask(image, RAISED) == ((), ["ok"])


def test_a_level_is_lowered_only_by_who_says_so(image: Image) -> None:
    image.replay(FeatureLevelRecord("metadata.version", 26))
    _, (why,) = ask(image, FeatureUpdate("metadata.version", 25))
    assert why == "INVALID_UPDATE_VERSION metadata.version is at 26: to lower it to 25, request a downgrade"
    lowered = FeatureUpdate("metadata.version", 25, UpgradeType.SAFE_DOWNGRADE)
    assert ask(image, lowered) == ((FeatureLevelRecord("metadata.version", 25),), ["ok"])
    _, (why,) = ask(image, FeatureUpdate("metadata.version", 24, UpgradeType.UNSAFE_DOWNGRADE))
    assert why.endswith("the active controller does not support metadata.version 24, but 25 to 27")


def test_what_gives_something_up_is_lowered_only_unsafely(image: Image) -> None:
    _, (why,) = ask(image, FeatureUpdate("group.version", 0, UpgradeType.SAFE_DOWNGRADE))
    assert "group.version 0 is not safe: members with group.protocol=consumer are refused" in why
    unsafe = FeatureUpdate("group.version", 0, UpgradeType.UNSAFE_DOWNGRADE)
    assert ask(image, unsafe) == ((FeatureLevelRecord("group.version", 0),), ["ok"])


def test_the_level_of_the_quorum_is_judged_and_left_to_it(image: Image) -> None:
    wanted = FeatureUpdate("kraft.version", 1)
    join(image, 1)
    assert "node 1 supports kraft.version 0: upgrade it first" in ask(image, wanted)[1][0]
    join(image, 1, features_to_record(SUPPORTED))
    assert ask(image, wanted) == ((), ["ok"])
    lowered = FeatureUpdate("kraft.version", 0, UpgradeType.UNSAFE_DOWNGRADE)
    decision = decide_update_features(image, [lowered], SUPPORTED, kraft_version=1)
    assert decision.reply[0].message == "kraft.version is at 1 and cannot be lowered"


def test_all_or_nothing(image: Image) -> None:
    records, (first, second) = ask(image, RAISED, FeatureUpdate("streams.version", 1))
    assert records == ()
    assert first == "FEATURE_UPDATE_FAILED nothing was changed, because streams.version was refused"
    assert "unknown feature 'streams.version'; the features are metadata.version, " in second


@pytest.mark.parametrize(
    ("updates", "why"),
    [
        ((), "INVALID_REQUEST no feature is listed"),
        ((RAISED, RAISED), "INVALID_REQUEST a feature is listed twice"),
        (
            (FeatureUpdate("metadata.version", 26, 9),),
            "INVALID_UPDATE_VERSION metadata.version: upgrade type 9 must be",
        ),
        (
            (FeatureUpdate("metadata.version", 26, 2),),
            "INVALID_UPDATE_VERSION metadata.version is at 25: to raise it",
        ),
        ((FeatureUpdate("metadata.version", -1, 3),), "INVALID_UPDATE_VERSION the active controller does not"),
        ((FeatureUpdate("transaction.version", 0, 3),), "INVALID_UPDATE_VERSION the active controller does not"),
    ],
)
def test_nonsense_is_refused_with_a_sentence(image: Image, updates: tuple[FeatureUpdate, ...], why: str) -> None:
    records, verdicts = ask(image, *updates)
    assert records == ()
    assert all(each.startswith(why) for each in verdicts)


def test_codes_are_those_of_the_protocol() -> None:
    assert (ErrorCode.INVALID_UPDATE_VERSION, ErrorCode.FEATURE_UPDATE_FAILED) == (95, 96)
