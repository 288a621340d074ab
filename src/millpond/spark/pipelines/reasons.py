"""Why a job failed, in one sentence: the original message extracted from Spark's wrapping."""

from __future__ import annotations

import re
from typing import Final

LENGTH_MAX: Final = 2000

_TRACEBACK: Final = "Traceback (most recent call last):"
_RAISED: Final = re.compile(r"^(?P<type>[A-Za-z_][\w.]*)(?:$|: ?(?P<text>.*)$)")
_STACK: Final = re.compile(r"\n\s*(?:at \S+\(|\.\.\. \d+ more|Caused by: |JVM stacktrace:|== |'?[A-Z]\w+ .*\n\+- )")
_STATE: Final = re.compile(r"[.;]?\s*SQLSTATE: \w{5}")
_CLASS: Final = re.compile(r"^\[[A-Z0-9_.]+\]\s*")
_WRAPPERS: Final = (
    re.compile(r"^An error occurred while calling [\w$.]+?\.\s*:\s*"),
    re.compile(r"^Query (?:\S+ )?\[id = [^\]]*\] terminated with exception: "),
    re.compile(r"^Job aborted due to stage failure: .*?: (?=[a-z]+\.[\w.]*(?:Exception|Error))", re.DOTALL),
    re.compile(r"^(?:Writing )?[Jj]ob aborted\.? ?(?!due)"),
    re.compile(r"^Failed when Python \w+ data source [^:]*: "),
    re.compile(r"^(?:[a-z]\w*\.)+[\w$]*(?:Exception|Error): "),
)


def reason_of(error: BaseException) -> str:
    """The reason. A Python exception in Spark's text is the root cause, so it is preferred."""
    return reason_in(str(error)) or type(error).__name__


def reason_in(text: str) -> str:
    """The reason in Spark's text."""
    raised = _raised(text) if _TRACEBACK in text else None
    reason = raised if raised is not None else _unwrapped(text)
    reason = " ".join(reason.split())
    return reason if len(reason) <= LENGTH_MAX else reason[: LENGTH_MAX - 1] + "…"


def _raised(text: str) -> str | None:
    """The message of the exception that the last traceback in the text ends in."""
    block = text[text.rindex(_TRACEBACK) + len(_TRACEBACK) :]
    lines = block.splitlines()
    for number, line in enumerate(lines):
        # Stack frames are indented; the first line that is not names the exception.
        match = _RAISED.match(line)
        if match is None:
            continue
        rest: list[str] = []
        for following in lines[number + 1 :]:
            if not following.strip() or following.startswith(("\t", "    at ", "  File ")):
                break
            rest.append(following)
        message = _STATE.split("\n".join([match["text"] or "", *rest]))[0].strip()
        name = match["type"].rpartition(".")[2]
        if not message:
            return name
        # Our own errors are sentences; for others the exception's name is part of the reason.
        return message if match["type"].startswith("millpond.") else f"{name}: {message}"
    return None


def _unwrapped(text: str) -> str:
    text = _STACK.split(text)[0]
    before = None
    while text != before:
        before = text
        text = _CLASS.sub("", text.strip())
        for wrapper in _WRAPPERS:
            text = wrapper.sub("", text)
    # The first line has the error; the lines below explain SQL or show the plan.
    return _STATE.split(text)[0].strip().partition("\n")[0]
