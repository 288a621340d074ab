"""Clients' patterns in RE2 syntax, matched against whole names in time linear in the name's length.

The alphabet is small: topic names have 65 characters, transactional IDs the typable ones. So a character class is
just a set. A pattern is compiled to a nondeterministic automaton (Thompson's construction), and the sets of steps
reached while reading names are cached as states. No pattern, however hostile, makes a match take longer than its
steps times the length of the name. Constructs that RE2 refuses (backreferences, lookahead and lookbehind) are refused
here too, as are word boundaries and Unicode classes, which names do not need.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from millpond.base.named_tuple import NamedTuple

PATTERN_LENGTH_MAX: Final = 512
REPEAT_MAX: Final = 1000
STEPS_MAX: Final = 4000
DEPTH_MAX: Final = 50
STATES_KEPT: Final = 1000

NAME_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "._-")
"""The characters of topic names."""

ANOTHER: Final = "\x7f"
"""Represents all characters that cannot be typed: only what matches any character matches it."""

TYPED_CHARACTERS: Final = frozenset(map(chr, range(0x20, 0x7F))) | {ANOTHER}
DIGITS: Final = frozenset(string.digits)
WORD: Final = frozenset(string.ascii_letters + string.digits + "_")
SPACE: Final = frozenset(" \t\n\f\r\v")
PRINTED: Final = frozenset(map(chr, range(0x20, 0x7F)))

PERL_CLASSES: Final = {"d": DIGITS, "w": WORD, "s": SPACE}
POSIX_CLASSES: Final = {
    "alnum": WORD - {"_"},
    "alpha": frozenset(string.ascii_letters),
    "ascii": PRINTED,
    "blank": frozenset(" \t"),
    "cntrl": frozenset(map(chr, range(0x20))),
    "digit": DIGITS,
    "graph": PRINTED - {" "},
    "lower": frozenset(string.ascii_lowercase),
    "print": PRINTED,
    "punct": frozenset(string.punctuation),
    "space": SPACE,
    "upper": frozenset(string.ascii_uppercase),
    "word": WORD,
    "xdigit": frozenset(string.hexdigits),
}
CONTROL_ESCAPES: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
FLAGS: Final = frozenset("imsU")
"""Only `i` makes a difference for single-line names that are matched whole."""


class BadPattern(ValueError):
    """An invalid pattern; the message says why, for its author."""


# The steps of a machine. Each names its successor.


class Take(NamedTuple):
    characters: frozenset[str]
    then: int


class Fork(NamedTuple):
    ways: tuple[int, ...]


class AtStart(NamedTuple):
    then: int


class AtEnd(NamedTuple):
    then: int


class Accept(NamedTuple):
    pass


Step = Take | Fork | AtStart | AtEnd | Accept
Builder = Callable[[int], int]
"""Places the steps of a part of the pattern before its successor; returns the start of the part."""

ACCEPT: Final = 0


@dataclass(slots=True)
class Machine:
    """Steps, and the states that matching has produced so far."""

    steps: list[Step] = field(default_factory=lambda: [Accept()])
    start: int = ACCEPT
    _first: frozenset[int] | None = None
    """The start state; computed with the first name."""
    _next: dict[tuple[frozenset[int], str, bool], frozenset[int]] = field(default_factory=dict)
    """By state, character, and whether it is the last one."""
    steps_walked: int = 0
    """The work done since it was created; cached states cost nothing."""

    def add(self, step: Step) -> int:
        if len(self.steps) >= STEPS_MAX:
            raise BadPattern("the pattern has too many repetitions")
        self.steps.append(step)
        return len(self.steps) - 1

    def matches(self, name: str) -> bool:
        """Whether it matches a name over the machine's alphabet."""
        if not name:
            return ACCEPT in self._reach([self.start], at_start=True, at_end=True)
        if self._first is None:
            self._first = self._reach([self.start], at_start=True, at_end=False)
        state, last = self._first, len(name) - 1
        for position, character in enumerate(name):
            key = state, character, position == last
            following = self._next.get(key)
            if following is None:
                if len(self._next) >= STATES_KEPT:
                    self._next.clear()
                following = self._next[key] = self._read(state, character, at_end=position == last)
            state = following
            if not state:
                return False
        return ACCEPT in state

    def _read(self, state: frozenset[int], character: str, *, at_end: bool) -> frozenset[int]:
        taken = []
        for number in state:
            step = self.steps[number]
            if isinstance(step, Take) and character in step.characters:
                taken.append(step.then)
        reached = self._reach(taken, at_start=False, at_end=at_end)
        self.steps_walked += len(state) + len(reached)
        return reached

    def _reach(self, numbers: Iterable[int], *, at_start: bool, at_end: bool) -> frozenset[int]:
        """The steps that can be reached from these without reading a character."""
        waiting = list(numbers)
        seen = set(waiting)
        while waiting:
            following: tuple[int, ...]
            match self.steps[waiting.pop()]:
                case Fork(ways):
                    following = ways
                case AtStart(then) if at_start:
                    following = (then,)
                case AtEnd(then) if at_end:
                    following = (then,)
                case _:
                    continue
            fresh = [each for each in following if each not in seen]
            seen.update(fresh)
            waiting += fresh
        return frozenset(seen)


@lru_cache(maxsize=256)
def compiled(pattern: str, alphabet: frozenset[str] = NAME_CHARACTERS) -> Machine:
    """The machine of a pattern for names over this alphabet; BadPattern if it is invalid."""
    if len(pattern) > PATTERN_LENGTH_MAX:
        raise BadPattern(f"a pattern has at most {PATTERN_LENGTH_MAX} characters, this one has {len(pattern)}")
    return _Parser(pattern, alphabet).parse()


class _Parser:
    """Recursive descent: alternatives of sequences of repeated atoms."""

    def __init__(self, pattern: str, alphabet: frozenset[str]) -> None:
        self.pattern = pattern
        self.alphabet = alphabet
        self.position = 0
        self.depth = 0
        self.ignore_case = False
        self.machine = Machine()

    def parse(self) -> Machine:
        whole = self.alternatives()
        if self.position < len(self.pattern):
            raise BadPattern("unmatched )")
        self.machine.start = whole(ACCEPT)
        return self.machine

    # Reading the pattern.

    def peek(self, text: str) -> bool:
        return self.pattern.startswith(text, self.position)

    def eat(self, text: str) -> bool:
        if not self.peek(text):
            return False
        self.position += len(text)
        return True

    def take(self) -> str:
        if self.position >= len(self.pattern):
            raise BadPattern("the pattern ends in the middle of an expression")
        self.position += 1
        return self.pattern[self.position - 1]

    def take_until(self, end: str) -> str:
        stop = self.pattern.find(end, self.position)
        if stop < 0:
            raise BadPattern(f"there is no {end} to what was begun")
        text = self.pattern[self.position : stop]
        self.position = stop + len(end)
        return text

    # The grammar.

    def alternatives(self) -> Builder:
        ignore_case_outside = self.ignore_case
        ways = [self.sequence()]
        while self.eat("|"):
            ways.append(self.sequence())
        self.ignore_case = ignore_case_outside
        if len(ways) == 1:
            return ways[0]
        return lambda then: self.machine.add(Fork(tuple(way(then) for way in ways)))

    def sequence(self) -> Builder:
        parts: list[Builder] = []
        while self.position < len(self.pattern) and not self.peek("|") and not self.peek(")"):
            if self.eat("\\Q"):
                text = self.take_until("\\E") if "\\E" in self.pattern[self.position :] else self._rest()
                parts += [self.taking(frozenset(character)) for character in text]
                if text:
                    parts[-1] = self.repeated(parts[-1])
                continue
            parts.append(self.repeated(self.atom()))

        def build(then: int) -> int:
            for part in reversed(parts):
                then = part(then)
            return then

        return build

    def _rest(self) -> str:
        text, self.position = self.pattern[self.position :], len(self.pattern)
        return text

    def repeated(self, atom: Builder) -> Builder:
        bounds = self.bounds()
        if bounds is None:
            return atom
        self.eat("?")  # Greedy or not: a whole name matches or does not.
        if self.bounds() is not None:
            raise BadPattern("a repetition cannot be repeated unless it is in parentheses")
        least, most = bounds
        return lambda then: self._repeat(atom, least, most, then)

    def _repeat(self, atom: Builder, least: int, most: int | None, then: int) -> int:
        if most is None:
            # The loop's fork must exist before the atom that leads back to it.
            loop = self.machine.add(Fork(()))
            self.machine.steps[loop] = Fork((atom(loop), then))
            begin = loop
        else:
            begin = then
            for _ in range(most - least):
                begin = self.machine.add(Fork((atom(begin), then)))
        for _ in range(least):
            following, begin = begin, atom(begin)
            if begin == following:
                break  # The atom is empty: repeating it would add no steps, and so escape their limit.
        return begin

    def bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self.eat(sign):
                return bounds
        if not self.peek("{"):
            return None
        end = self.pattern.find("}", self.position)
        least, comma, most = self.pattern[self.position + 1 : max(end, 0)].partition(",")
        if not least.isdecimal() or not (most.isdecimal() or not most):
            return None  # Then the brace is literal, as in RE2.
        low = int(least)
        high = int(most) if most else (None if comma else low)
        if max(low, high or 0) > REPEAT_MAX or (high is not None and high < low):
            raise BadPattern(f"{{{least}{comma}{most}}} is not a number of repetitions from 0 to {REPEAT_MAX}")
        self.position = end + 1
        return low, high

    def atom(self) -> Builder:
        character = self.take()
        match character:
            case "(":
                return self.group()
            case "[":
                return self.taking(self.bracket())
            case ".":
                return self.taking(self.alphabet)
            case "^":
                return lambda then: self.machine.add(AtStart(then))
            case "$":
                return lambda then: self.machine.add(AtEnd(then))
            case "*" | "+" | "?":
                raise BadPattern(f"{character} has nothing to repeat")
            case "\\":
                return self.escape()
            case _:
                return self.taking(frozenset(character))

    def taking(self, characters: frozenset[str]) -> Builder:
        if self.ignore_case:
            characters |= {each.swapcase() for each in characters}
        accepted = characters & self.alphabet
        return lambda then: self.machine.add(Take(accepted, then))

    def group(self) -> Builder:
        ignore_case_outside = self.ignore_case
        if self.eat("?"):
            if self.eat("P<") or (self.peek("<") and not self.peek("<=") and not self.peek("<!") and self.eat("<")):
                if not self.take_until(">").isidentifier():
                    raise BadPattern("a group name may have only letters, digits and _")
            elif self.flags():
                return lambda then: then
        self.depth += 1
        if self.depth > DEPTH_MAX:
            raise BadPattern(f"parentheses are nested more than {DEPTH_MAX} deep")
        inner = self.alternatives()
        self.depth -= 1
        self.ignore_case = ignore_case_outside
        if not self.eat(")"):
            raise BadPattern("unmatched (")
        return inner

    def flags(self) -> bool:
        """Read `i-m:` or `i)`; true if nothing else is in the group, so that the flags apply to what follows."""
        on = True
        while True:
            character = self.take()
            if character in ":)":
                return character == ")"
            if character == "-":
                on = False
            elif character not in FLAGS:
                raise BadPattern(f"(?{character} is not supported")
            elif character == "i":
                self.ignore_case = on

    def escape(self) -> Builder:
        character = self.take()
        if character == "A":
            return lambda then: self.machine.add(AtStart(then))
        if character == "z":
            return lambda then: self.machine.add(AtEnd(then))
        return self.taking(self.escaped(character))

    def escaped(self, character: str) -> frozenset[str]:
        """The character or class after a backslash, in brackets or not."""
        if character.lower() in PERL_CLASSES:
            members = PERL_CLASSES[character.lower()]
            return self.alphabet - members if character.isupper() else members
        if character in CONTROL_ESCAPES:
            return frozenset(CONTROL_ESCAPES[character])
        if character == "x":
            digits = self.take_until("}") if self.eat("{") else self.take() + self.take()
            if not digits or not set(digits) <= set(string.hexdigits) or int(digits, 16) > 0x10FFFF:
                raise BadPattern(f"\\x{digits} is not a character")
            return frozenset(chr(int(digits, 16)))
        if character.isalnum():
            raise BadPattern(f"\\{character} is not supported")
        return frozenset(character)

    def bracket(self) -> frozenset[str]:
        """The inside of [...]."""
        negated = self.eat("^")
        characters: set[str] = set()
        is_first = True
        while is_first or not self.peek("]"):
            is_first = False
            if self.eat("[:"):
                name = self.take_until(":]")
                if name.removeprefix("^") not in POSIX_CLASSES:
                    raise BadPattern(f"[:{name}:] is not a character class")
                members = POSIX_CLASSES[name.removeprefix("^")]
                characters |= self.alphabet - members if name.startswith("^") else members
                continue
            low = self.bracket_character()
            if self.peek("-") and not self.peek("-]") and len(low) == 1:
                self.take()
                characters |= self.between(low, self.bracket_character())
            else:
                characters |= low
        self.take()
        if self.ignore_case:
            characters |= {each.swapcase() for each in characters}
        return self.alphabet - characters if negated else frozenset(characters)

    def bracket_character(self) -> frozenset[str]:
        character = self.take()
        return self.escaped(self.take()) if character == "\\" else frozenset(character)

    def between(self, low: frozenset[str], high: frozenset[str]) -> frozenset[str]:
        if len(high) != 1 or min(high) < min(low):
            raise BadPattern("a character range must go from a lower to a higher character")
        return _between(self.alphabet, min(low), min(high))


@lru_cache(maxsize=256)
def _between(alphabet: frozenset[str], first: str, last: str) -> frozenset[str]:
    """Cached: most patterns use the same few ranges."""
    return frozenset(each for each in alphabet if first <= each <= last)
