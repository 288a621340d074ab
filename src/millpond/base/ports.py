"""The ports to the outside world: a clock, a disk, a network, worker threads, entropy.

Code below `node` uses the outside world only through these. `node` has the real ones, `sim` the simulated ones; the
whole broker runs on either. Everything here is called from the loop's thread unless a docstring says otherwise. Disk
failures are `OSError` in both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeVar
from uuid import UUID

from millpond.base.clock import Clock as Clock
from millpond.base.clock import Timer as Timer
from millpond.base.later import Later
from millpond.base.tls import ClientTls, ServerTls
from millpond.base.values import dataclass

T = TypeVar("T")

Buffer: TypeAlias = bytes | bytearray | memoryview


class File(Protocol):
    """One open file. `read_at`, `sync` and `size` may be called from any thread."""

    path: str

    def size(self) -> int: ...

    def append(self, parts: Sequence[Buffer]) -> None:
        """Append all parts in order, completely, or raise. After a failure the tail is undefined."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def is_cached(self, position: int, length: int) -> bool:
        """A cheap guess whether reading this range would not wait for the disk."""
        ...

    def read_cached(self, position: int, length: int) -> Buffer | None:
        """These bytes, if they exist and can be read without waiting for the disk; else None."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return only when every byte written so far survives a power cut (fdatasync)."""
        ...

    def descriptor(self) -> int | None:
        """A file descriptor for sendfile; None if there is none."""
        ...

    def retain(self) -> None:
        """Keep the file readable until a matching `release`, even if it is closed or removed in the meantime."""
        ...

    def release(self) -> None: ...

    def is_held(self) -> bool:
        """Whether a `retain` is waiting for its `release`."""
        ...

    def close(self) -> None:
        """Idempotent. Takes effect when the last `retain` has been released."""
        ...


class FileLock(Protocol):
    def release(self) -> None: ...


class Disk(Protocol):
    """A tree of folders and files. Paths are strings with `/`, as the caller names them."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and appending. Without `create` a missing file is FileNotFoundError; with it, an existing
        file is opened as it is."""
        ...

    def read(self, path: str) -> bytes: ...

    def replace(self, path: str, data: bytes) -> None:
        """Atomically and durably make `data` the whole content of `path` (temporary file, sync, rename, sync)."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def list(self, folder: str) -> list[str]:
        """Names in the folder, sorted."""
        ...

    def make_folder(self, path: str) -> None:
        """Create it and its parents; an existing folder is fine."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic; replaces an existing file. Durable only after `sync_folder` of the parent."""
        ...

    def remove(self, path: str) -> None:
        """Remove one file. Missing is FileNotFoundError."""
        ...

    def remove_folder(self, path: str) -> None:
        """Remove a folder and all that is in it."""
        ...

    def sync_folder(self, path: str) -> None:
        """Make creations, renames and removals in this folder survive a power cut."""
        ...

    def write_aside(self, path: str, data: bytes) -> str:
        """Write `data` to a file beside `path`, not yet durable; its name, for `put_in_place`."""
        ...

    def put_in_place(self, aside: str, path: str) -> None:
        """Rename what `write_aside` wrote to `path`, atomically. Durable only after `sync_folder`.

        The replaced file may be kept for the next time: on some disks freeing a file costs milliseconds.
        """
        ...

    def sync_everything(self, path: str) -> bool:
        """Make everything written so far on the file system of `path` survive a power cut, including names.

        One call instead of thousands. False, with no guarantee, if the system has no such call, or once a call has
        failed: only syncing each file tells whose bytes were lost, and only the first time.
        """
        ...

    def files_max(self) -> int:
        """How many files and connections this process may have open."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...

    def mark(self, folder: str) -> str | None:
        """An identifier that differs between this folder and any copy of it while it exists; None if unavailable."""
        ...

    def lock(self, path: str) -> FileLock:
        """Take an exclusive lock that ends with the process. BlockingIOError if another process holds it."""
        ...


class Workers(Protocol):
    """Threads for slow work (fsync, cold reads, compaction), so that the loop never waits."""

    def run(self, job: Callable[[], T]) -> Later[T]:
        """Run `job` off the loop; its result or exception arrives on the loop."""
        ...


class Entropy(Protocol):
    def uuid(self) -> UUID: ...

    def below(self, bound: int) -> int:
        """A random integer in [0, bound)."""
        ...


@dataclass(slots=True, frozen=True)
class FileRange:
    """Bytes of a file that a response carries without reading them. The creator retains the file; the sender
    releases it."""

    file: File
    position: int
    length: int

    def __len__(self) -> int:
        return self.length


ReplyPart: TypeAlias = Buffer | FileRange


class Link(Protocol):
    """One byte stream to a peer."""

    peer: str
    """The peer's host:port."""
    local_host: str
    """Our address that the peer connected to."""
    listener: str
    """The name of the listener that the peer connected to; empty for outgoing connections."""
    is_encrypted: bool
    certificate_name: str | None
    """The distinguished name (RFC 2253) in the peer's verified certificate."""
    on_secured: Callable[[], None] | None
    """Set by the acceptor of an encrypted link: called once, when the peer's certificate is known and before any
    of its data is received."""

    def send(self, parts: Sequence[ReplyPart]) -> None:
        """Queue for sending, in order; never blocks. File ranges are released once sent or once the link is gone."""
        ...

    def unsent_bytes(self) -> int: ...

    def unsent_memory_bytes(self) -> int:
        """How many of the unsent bytes are in memory rather than in files. Takes time proportional to the queue."""
        ...

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def close(self) -> None:
        """Stop reading, send what is queued, then close."""
        ...

    def abort(self) -> None:
        """Close now; what is queued is dropped."""
        ...


class LinkHandler(Protocol):
    """The callbacks of a link's owner."""

    def buffer(self) -> memoryview:
        """Where to read the next bytes to; never empty. Valid until the next call of any method."""
        ...

    def received(self, count: int) -> None:
        """`count` bytes are now at the start of `buffer`."""
        ...

    def drained(self) -> None:
        """Everything queued has been sent."""
        ...

    def closed(self) -> None:
        """The link is gone, whichever side closed it. Called exactly once."""
        ...


class Listener(Protocol):
    host: str
    port: int

    def close(self) -> None:
        """Stop accepting; existing links stay open."""
        ...


class Network(Protocol):
    def listen(
        self,
        host: str,
        port: int,
        accept: Callable[[Link], LinkHandler | None],
        tls: ServerTls | None = None,
        name: str = "",
    ) -> Listener:
        """Accept links from now on. `accept` returns the handler, or None to reject the peer: for an encrypted
        link before the handshake."""
        ...

    def connect(
        self, host: str, port: int, make_handler: Callable[[Link], LinkHandler], tls: ClientTls | None = None
    ) -> Link:
        """A link to a listening peer, usable at once: sends wait for the connection. An unreachable peer shows as
        `closed`. `host` is an address, because resolving a name takes time."""
        ...


@dataclass(slots=True, frozen=True)
class World:
    """All ports together, as a node or the simulator passes them to a broker."""

    clock: Clock
    disk: Disk
    network: Network
    workers: Workers
    sync_workers: Workers
    """For syncs only: acknowledgements must not wait behind cold reads, compaction and removal."""
    login_workers: Workers
    """For logins only: no other work may lock users out."""
    entropy: Entropy
    boot_id: str
    """Changes with every boot; stays the same across restarts of the process. While it is the same, data that a
    process wrote without a sync is still there."""
    fetch: Callable[[str], Later[bytes]] | None = None
    """The small document at a URL; OSError or ValueError if it cannot be fetched. It does not use the workers,
    which must not wait for other machines. None if unsupported."""
