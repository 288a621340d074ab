"""What the outside world gives: a clock, a disk, a network, worker threads, entropy.

Nothing below `node` touches the world except through these. `node` gives the real ones, `sim` the fake ones; the
whole broker runs under either. Everything here is called from one thread, the loop's, unless a docstring says
otherwise. Failures of the disk are `OSError` in both worlds.
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
        """Write all parts, in order, at the end, whole or raise. After a failure the tail is undefined."""
        ...

    def read_at(self, position: int, length: int) -> bytes:
        """Up to `length` bytes; fewer only at the end of the file."""
        ...

    def is_cached(self, position: int, length: int) -> bool:
        """A cheap guess: would reading this range be answered from memory, without waiting for the disk?"""
        ...

    def read_cached(self, position: int, length: int) -> Buffer | None:
        """So many bytes, if that range is there and can be had without waiting for the disk; else None."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return only when every byte written so far survives a power cut (fdatasync)."""
        ...

    def descriptor(self) -> int | None:
        """A file descriptor for the kernel's own copy (sendfile); None where there is no such thing."""
        ...

    def retain(self) -> None:
        """Keep the file readable until a matching `release`, even if it is closed or removed meanwhile."""
        ...

    def release(self) -> None: ...

    def is_held(self) -> bool:
        """Whether a `retain` waits for its `release`."""
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
        """Write `data` to a file beside `path`, not yet safe; its name, for `put_in_place`."""
        ...

    def put_in_place(self, aside: str, path: str) -> None:
        """Give what `write_aside` wrote its name, at once or not at all. Durable only after `sync_folder`.

        What had the name may stay aside, for the next time: to free a file costs some disks milliseconds.
        """
        ...

    def sync_everything(self, path: str) -> bool:
        """Make all that was written so far, on the file system of `path`, survive a power cut: names too.

        One call instead of thousands. False, with nothing promised, where the system has no such call. So it is, too,
        once a call has failed: whose bytes were lost only a sync of each file tells, and only the first time.
        """
        ...

    def files_max(self) -> int:
        """How many files and connections this process may have open."""
        ...

    def free_bytes(self, path: str) -> int: ...

    def total_bytes(self, path: str) -> int: ...

    def mark(self, folder: str) -> str | None:
        """What tells this very folder from a copy of it, for as long as it is there; None where nobody can tell."""
        ...

    def lock(self, path: str) -> FileLock:
        """Take an exclusive lock that dies with the process. BlockingIOError if another process holds it."""
        ...


class Workers(Protocol):
    """Where slow work (fsync, cold reads, compaction) goes so that the loop never waits."""

    def run(self, job: Callable[[], T]) -> Later[T]:
        """Run `job` off the loop; what it returns or raises is told on the loop."""
        ...


class Entropy(Protocol):
    def uuid(self) -> UUID: ...

    def below(self, bound: int) -> int:
        """A random integer in [0, bound)."""
        ...


@dataclass(slots=True, frozen=True)
class FileRange:
    """Bytes of a file that a reply carries without reading them. The maker retains the file; the sender releases."""

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
    """The address of ours that the peer came in by."""
    listener: str
    """The name of the listener that the peer came in by; empty where we have connected to it."""
    is_encrypted: bool
    certificate_name: str | None
    """The distinguished name (RFC 2253) in the certificate that the peer has shown and that was found good."""
    on_secured: Callable[[], None] | None
    """Who accepts an encrypted link sets this: called once, when the peer's certificate is known and no byte of the
    peer has been received yet."""

    def send(self, parts: Sequence[ReplyPart]) -> None:
        """Queue for sending, in order; never blocks. File ranges are released once sent or once the link is gone."""
        ...

    def unsent_bytes(self) -> int: ...

    def unsent_memory_bytes(self) -> int:
        """How many of them are in memory, and not in files. Costs in proportion to the queue."""
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
    """What a link tells its owner."""

    def buffer(self) -> memoryview:
        """Where the next bytes should be read to; never empty. Valid until the next call of any method."""
        ...

    def received(self, count: int) -> None:
        """`count` bytes now stand at the start of what `buffer` gave."""
        ...

    def drained(self) -> None:
        """Everything queued has left."""
        ...

    def closed(self) -> None:
        """The link is gone, whoever closed it. Called exactly once."""
        ...


class Listener(Protocol):
    host: str
    port: int

    def close(self) -> None:
        """Accept no more; open links go on."""
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
        """Accept links from now on. `accept` returns the handler, or None to turn the peer away at once: also before
        the peer of an encrypted link has shown anything."""
        ...

    def connect(
        self, host: str, port: int, make_handler: Callable[[Link], LinkHandler], tls: ClientTls | None = None
    ) -> Link:
        """A link to a peer that listens, usable at once: what is sent waits for the connection. A peer that cannot be
        reached shows as `closed`. `host` is an address, because looking up a name would take its time."""
        ...


@dataclass(slots=True, frozen=True)
class World:
    """All ports together, as a node or the simulator hands them to a broker."""

    clock: Clock
    disk: Disk
    network: Network
    workers: Workers
    sync_workers: Workers
    """For syncs alone: an acknowledgement must not wait behind cold reads, compaction and removal."""
    login_workers: Workers
    """For logins alone: no other work may lock users out."""
    entropy: Entropy
    boot_id: str
    """Another one after every loss of power; the same over the lives of a process. What a process wrote and never
    synced is still there while it is the same."""
    fetch: Callable[[str], Later[bytes]] | None = None
    """The small document at a URL; OSError or ValueError where it cannot be had. It takes nobody's place: the workers
    do not wait for other machines. None where there is no such thing."""
