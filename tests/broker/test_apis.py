"""The table of APIs agrees with the files it is built from, with their docstrings, and with the schemas."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import pytest

from millpond.broker import apis
from millpond.broker.apis import APIS
from millpond.broker.serving.api import Api
from millpond.wire import messages
from millpond.wire.header import NAMES

HEAD = re.compile(r"(\w+) \((\d+)\), versions? (\d+)(?:-(\d+))?: \S")


def file_of(api: Api) -> str:
    words = re.sub(r"(?<!^)(?=[A-Z])", "_", api.name).lower()
    return f"k{api.key:02}_{words}"


def test_the_table_is_in_the_order_of_the_keys_and_has_none_twice() -> None:
    keys = [api.key for api in APIS]
    assert keys == sorted(set(keys))


def test_every_file_is_one_api() -> None:
    files = {path.stem for path in Path(apis.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == {file_of(api) for api in APIS}


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_the_head_of_the_file_says_what_the_value_serves(api: Api) -> None:
    module = import_module(f"millpond.broker.apis.{file_of(api)}")
    assert module.API is api
    match = HEAD.match(module.__doc__)
    assert match, f"{module.__name__}: the head must begin with name, key and versions"
    name, key, low, high = match.groups()
    assert (name, int(key)) == (api.name, api.key)
    assert (int(low), int(high or low)) == api.versions


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
    """The dispatcher checks the controller mutation quota only for APIs that the controller answers."""
    if api.mutations is not None:
        assert api.at_controller
        assert hasattr(messages.response_class(api.key)(), "throttle_time_ms")
