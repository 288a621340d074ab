"""The console's process: `python -m millpond.console`. `millpond console` and `millpond up` start it."""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

import uvicorn

from millpond.admin.library import PlainLibrary
from millpond.base.settings import SettingError
from millpond.config.node import is_loopback
from millpond.console.app import make_app
from millpond.console.cluster_pool import ClusterPool
from millpond.console.connections import CONNECTIONS_MAX, BrowserConnection
from millpond.console.context import ConsoleContext
from millpond.console.guard import Rules
from millpond.console.login import Login, PasswordError, read_password
from millpond.console.shapes import sentence
from millpond.node.loopback import open_listener
from millpond.remote.errors import ConfigError
from millpond.spark.pipelines.tables import HOME

END_SECONDS = 1
POLITE = 5
"""The niceness of the console, which yields to a node on the same machine."""


def main() -> int:
    arguments = _parser().parse_args()
    # Not in the arguments: every user of the machine can see those.
    settings = json.loads(os.environ.pop("MILLPOND_CONSOLE_CLIENT", "{}"))
    try:
        pool = ClusterPool({"bootstrap.servers": arguments.bootstrap, **settings})
        login = None if arguments.password_file is None else Login(read_password(arguments.password_file))
    except ConfigError as fault:
        return _fail(sentence(fault))
    except PasswordError as fault:
        return _fail(f"The console's password cannot be read: {sentence(fault)}")
    try:
        fd = arguments.fd
        if fd is None:
            listener = open_listener(arguments.listen, has_login=login is not None)
        else:
            listener = socket.socket(fileno=fd)
    except (OSError, SettingError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else str(fault)
        return _fail(f"The console cannot listen on {arguments.listen}: {why}; choose another with --listen.")
    except ValueError as fault:
        return _fail(str(fault))
    host, port = listener.getsockname()[:2]
    is_open = not is_loopback(host)
    assert login is not None or not is_open, "other machines need a login"
    names = frozenset(each.lower() for each in arguments.name)
    context = ConsoleContext(
        arguments.bootstrap,
        pool,
        PlainLibrary(arguments.bootstrap, settings),
        arguments.pipelines,
        Rules(arguments.read_only, login, names | ({socket.gethostname().lower()} if is_open else set()), is_open),
    )
    config = uvicorn.Config(
        make_app(context),
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        http=BrowserConnection,
        ws="none",
        # Requests of connections that have just been closed count for a moment, too.
        limit_concurrency=2 * CONNECTIONS_MAX,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=END_SECONDS,
        h11_max_incomplete_event_size=32 << 10,
    )
    if arguments.with_parent:
        os.nice(POLITE)
        threading.Thread(target=_end_with_parent, daemon=True).start()
    else:
        shown = f"[{host}]" if ":" in host else host
        print(f"Console of {arguments.bootstrap}: http://{shown}:{port}  (Ctrl-C stops it)", flush=True)
        if is_open:
            print("Other machines can reach it, unencrypted: put TLS in front of it.", flush=True)
    uvicorn.Server(config).run([listener])
    # Threads that still wait for a broker must not keep the process alive.
    sys.stdout.flush()
    os._exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m millpond.console", description=__doc__)
    parser.add_argument("--bootstrap", default="127.0.0.1:9092")
    parser.add_argument("--listen", default="127.0.0.1:8080")
    parser.add_argument("--fd", type=int, help="A socket that listens already.")
    parser.add_argument("--read-only", action="store_true")
    parser.add_argument("--password-file", type=Path, help="Its first line is the login password.")
    parser.add_argument("--name", action="append", default=[], help="A host name that browsers may use.")
    parser.add_argument("--pipelines", type=Path, default=Path(HOME), help="Where pipelines keep their state.")
    parser.add_argument("--with-parent", action="store_true", help="End when standard input does.")
    return parser


def _end_with_parent() -> None:
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _fail(text: str) -> int:
    print(f"millpond: {text}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
