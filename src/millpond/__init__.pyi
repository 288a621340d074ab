"""The names of the package, for type checkers: at run time the client's are loaded at their first use."""

from millpond.analysis import arrow as arrow
from millpond.analysis import write_arrow as write_arrow
from millpond.client import *  # noqa: F403

__version__: str
