"""Where a cluster is and how to log in, from the arguments that users give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from millpond.remote.bootstrap import bootstrap_servers
from millpond.remote.client_file import client_settings, read_client_file
from millpond.remote.cluster import SETTINGS
from millpond.remote.errors import ConfigError
from millpond.remote.profiles import read_profiles

ADDRESS: Final = "bootstrap.servers"


def cluster_settings(
    bootstrap: str | None,
    client_config: str | None = None,
    settings: Mapping[str, str] | None = None,
    profile: str | None = None,
) -> dict[str, str]:
    """The settings for `Cluster`. Explicit ones override the profile or file, else MILLPOND_CLIENT_CONFIG."""
    if profile is not None and client_config is not None:
        raise ConfigError("profile and client_config both say how to log in: give one of them")
    if profile is not None:
        chosen_profile = read_profiles().get(profile, "profile")
        in_file = {ADDRESS: chosen_profile.bootstrap, **chosen_profile.settings}
    else:
        in_file = read_client_file(client_config, "client_config") if client_config else client_settings()
    given = {name: str(value) for name, value in (settings or {}).items()}
    unknown = given.keys() - SETTINGS
    if unknown:
        raise ConfigError(
            f"there is no setting {min(unknown)} here: settings say how to reach the cluster and to log in, such as "
            "security.protocol, sasl.username and ssl.ca.location"
        )
    chosen = {name: value for name, value in in_file.items() if name in SETTINGS} | given
    address = bootstrap or given.get(ADDRESS)
    # A profile says where its login belongs: the variable for an address is not for it.
    chosen[ADDRESS] = address or in_file[ADDRESS] if profile else bootstrap_servers(address, in_file.get(ADDRESS))
    return chosen
