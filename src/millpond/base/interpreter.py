"""How child processes start Python: never with the current directory on `sys.path`.

`python -m` and `python -c` put the current directory first. In a shared directory such as /tmp, any local user could
then plant a `click.py` that runs as the user of the node.
"""

from __future__ import annotations

import sys
from typing import Final

PYTHON: Final = (sys.executable, "-P")
"""The start of every command line that runs this Python."""
