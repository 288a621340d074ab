"""The one table of APIs agrees with the files it is made of, with their heads, and with the schemas."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from millpond.broker import apis
from millpond.broker.apis import APIS
from millpond.broker.serving.api import Api
from millpond.wire import messages
from millpond.wire.header import NAMES

HEAD = re.compile(r"(\w+) \((\d+)\), versions? (\d+)(?:-(\d+))?: \S")


def module_of(api: Api) -> Any:
    return import_module(api.handle.__module__)


def test_the_table_is_in_the_order_of_the_keys_and_has_none_twice() -> None:
    keys = [api.key for api in APIS]
    assert keys == sorted(set(keys))


TOGETHER = (apis.groups, apis.quorum, apis.voters)
OWN_FILE = [api for api in APIS if not any(api in module.APIS for module in TOGETHER)]


def test_every_api_has_a_file_of_its_own_or_a_line_among_those_of_groups_or_of_the_quorum() -> None:
    served = {module_of(api).__name__.rpartition(".")[2] for api in OWN_FILE}
    files = {path.stem for path in Path(apis.__file__).parent.glob("k*.py")}
    assert served <= files
    assert len(served) == len(OWN_FILE)
    for module in TOGETHER:
        for api in module.APIS:
            assert f"\n{api.name} ({api.key}), " in (module.__doc__ or "")


@pytest.mark.parametrize("api", OWN_FILE, ids=lambda api: api.name)
def test_the_head_of_the_file_says_what_the_value_serves(api: Api) -> None:
    module = module_of(api)
    assert module.API is api
    match = HEAD.match(module.__doc__)
    assert match, f"{module.__name__}: the head must begin with name, key and versions"
    name, key, low, high = match.groups()
    assert (name, int(key)) == (api.name, api.key)
    assert (int(low), int(high or low)) == api.versions


@pytest.mark.parametrize("api", OWN_FILE, ids=lambda api: api.name)
def test_the_file_is_named_by_its_key_and_name(api: Api) -> None:
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", api.name).lower()
    assert module_of(api).__name__.rpartition(".")[2] == f"k{api.key:02}_{words}"


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_what_is_served_can_be_decoded_and_encoded(api: Api) -> None:
    assert NAMES[api.key] == api.name
    low, high = api.versions
    for cls in (messages.request_class(api.key), messages.response_class(api.key)):
        first, last = cls.VERSIONS
        assert first <= low <= high <= last, f"{cls.__name__} has versions {first} to {last}"


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_what_is_advertised_and_not_served_is_refused_in_words(api: Api) -> None:
    if api.advertised is not None:
        low, high = api.advertised
        assert low <= api.versions[0]
        assert api.versions[1] <= high
        assert api.refuse is not None


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_the_limited_list_is_a_field_of_the_request(api: Api) -> None:
    if api.lists is not None:
        assert hasattr(messages.request_class(api.key)(), api.lists)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_what_changes_partitions_is_done_by_the_controller_and_tells_how_long_to_wait(api: Api) -> None:
    """Only of what the controller answers the dispatcher asks whether it has a quota."""
    if api.mutations is not None:
        assert api.at_controller
        assert hasattr(messages.response_class(api.key)(), "throttle_time_ms")
