"""A consumer group of a Redis stream on plain sockets: XREADGROUP, then XACK."""

from __future__ import annotations

import itertools

from bench.load_foreign import READ_BYTES, connect
from bench.load_queue import JOB_BYTES, WAIT_MS
from bench.load_redis import command
from bench.node import HOST

STREAM, GROUP = "race", "bench"
_numbers = itertools.count()


class _Answers:
    """Splits what Redis says into whole answers."""

    def __init__(self, port: int) -> None:
        self.socket = connect(HOST, port)
        self._rest = b""

    def read(self) -> list[object]:
        data = self.socket.recv(READ_BYTES)
        if not data:
            raise ConnectionError("Redis closed the connection")
        self._rest += data
        answers: list[object] = []
        at = 0
        while (found := _parsed(self._rest, at)) is not None:
            answer, at = found
            if isinstance(answer, RuntimeError):
                raise answer
            answers.append(answer)
        self._rest = self._rest[at:]
        return answers

    def ask(self, *words: bytes | str | int) -> object:
        self.socket.sendall(command(*words))
        while not (answers := self.read()):
            pass
        return answers[0]


def _parsed(data: bytes, at: int) -> tuple[object, int] | None:
    """One answer, and where it ends; None if it is not complete."""
    end = data.find(b"\r\n", at)
    if end < 0:
        return None
    kind, text, at = data[at : at + 1], data[at + 1 : end], end + 2
    match kind:
        case b"-":
            return RuntimeError(f"Redis refused: {text.decode()}"), at
        case b":":
            return int(text), at
        case b"$":
            size = int(text)
            if size < 0:
                return None if size != -1 else (b"", at)
            return (data[at : at + size], at + size + 2) if len(data) >= at + size + 2 else None
        case b"*":
            items = []
            for _ in range(max(int(text), 0)):
                found = _parsed(data, at)
                if found is None:
                    return None
                items.append(found[0])
                at = found[1]
            return items, at
    return text, at


class Sender(_Answers):
    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.ask("XGROUP", "CREATE", STREAM, GROUP, "0", "MKSTREAM")

    def send(self, jobs: list[bytes]) -> None:
        self.socket.sendall(b"".join(command("XADD", STREAM, "*", "v", job) for job in jobs))

    def answered(self) -> int:
        return len(self.read())


class Worker(_Answers):
    def __init__(self, port: int) -> None:
        super().__init__(port)
        self._take = command(
            "XREADGROUP",
            "GROUP",
            GROUP,
            f"worker-{next(_numbers)}",
            "COUNT",
            1,
            "BLOCK",
            WAIT_MS,
            "STREAMS",
            STREAM,
            ">",
        )
        self._taken: list[bytes] = []
        self._is_asking = False

    def begin(self) -> None:
        self.finish()

    def finish(self) -> None:
        if self._is_asking:
            return
        acknowledged = b"".join(command("XACK", STREAM, GROUP, each) for each in self._taken)
        self._taken = []
        self._is_asking = True
        self.socket.sendall(acknowledged + self._take)

    def received(self) -> list[bytes]:
        jobs = []
        for answer in self.read():
            if isinstance(answer, int):
                continue
            self._is_asking = False
            for _, entries in answer or ():  # type: ignore[attr-defined]
                for number, (_, value) in entries:
                    assert len(value) == JOB_BYTES
                    self._taken.append(number)
                    jobs.append(value)
        return jobs

    def keep_alive(self) -> None:
        """A connection is enough."""
