"""`ssl.principal.mapping.rules`: map the name in a certificate to a user name, as Kafka does.

A rule is `RULE:pattern/replacement/`, followed by `L` or `U` for lower or upper case; `$1` in the replacement is the
pattern's first group. A pattern must match the whole name. `DEFAULT` is the unchanged name.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from millpond.base.settings import SettingError
from millpond.base.values import dataclass

_RULE: Final = re.compile(r"\s*(?:(DEFAULT)|RULE:((?:\\.|[^\\/])*)/((?:\\.|[^\\/])*)/([LU]?))\s*(?:,|$)")
_REFERENCE: Final = re.compile(r"\\(.)|\$(\d+)")
_CASES: Final[dict[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}


@dataclass(frozen=True, slots=True)
class _Rule:
    pattern: re.Pattern[str]
    replacement: str
    case: str

    def apply(self, name: str) -> str | None:
        match = self.pattern.fullmatch(name)
        if match is None:
            return None
        # A backslash escapes the next character, as in Java's replacements.
        text = _REFERENCE.sub(
            lambda each: each[1] if each[1] is not None else match[int(each[2])] or "", self.replacement
        )
        return _CASES[self.case](text)


@dataclass(frozen=True, slots=True)
class PrincipalRules:
    """All rules, in order."""

    rules: tuple[_Rule, ...]

    def user_of(self, name: str) -> str | None:
        """The user name for a certificate's name; None if no rule matches."""
        return next((user for rule in self.rules if (user := rule.apply(name)) is not None), None)


_DEFAULT: Final = _Rule(re.compile(r"(?s).*"), "$0", "")
AS_IT_IS: Final = PrincipalRules((_DEFAULT,))


def principal_rules(text: str) -> PrincipalRules:
    """Parse the rules. Raises SettingError naming the rule that is invalid."""
    rules = []
    position = 0
    while position < len(text):
        match = _RULE.match(text, position)
        if match is None:
            raise SettingError(f"{text[position:]!r} is neither DEFAULT nor RULE:pattern/replacement/[LU]")
        rules.append(_DEFAULT if match[1] else _rule(match[2], match[3], match[4]))
        position = match.end()
    return PrincipalRules(tuple(rules)) if rules else AS_IT_IS


def _rule(pattern: str, replacement: str, case: str) -> _Rule:
    try:
        compiled = re.compile(pattern.replace(r"\/", "/"))
    except re.error as fault:
        raise SettingError(f"RULE:{pattern}/…: {fault}") from None
    for each in _REFERENCE.finditer(replacement):
        if each[2] is not None and int(each[2]) > compiled.groups:
            raise SettingError(f"RULE:{pattern}/{replacement}/: the pattern has no group {each[2]}")
    return _Rule(compiled, replacement, case)


def rules_fault(text: str) -> str | None:
    try:
        principal_rules(text)
    except SettingError as fault:
        return str(fault)
    return None
