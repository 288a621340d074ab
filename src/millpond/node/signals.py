"""The signals that end a process in order."""

from __future__ import annotations

import signal


def stop_signals() -> tuple[signal.Signals, ...]:
    """SIGTERM, SIGINT, and SIGHUP, which a closed terminal sends; under nohup the last one ends nothing."""
    is_kept = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGTERM, signal.SIGINT, *(() if is_kept else (signal.SIGHUP,)))
