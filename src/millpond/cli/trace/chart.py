"""A latency budget as lines of text."""

from __future__ import annotations

from typing import Final

from millpond.admin.trace.hops import Budget, Hop

NAME_WIDTH: Final = 12
NUMBER_WIDTH: Final = 8
EIGHTHS: Final = " ▏▎▍▌▋▊▉█"


def chart(budget: Budget, width: int) -> list[str]:
    """The budget as lines of at most `width` columns; each bar is placed at the median time of its hop."""
    head = "".ljust(NAME_WIDTH) + "".join(name.rjust(NUMBER_WIDTH) for name in ("p50", "p99", "worst")) + "  ms"
    room = max(8, width - NAME_WIDTH - 3 * NUMBER_WIDTH - 4)
    end_ms = max(hop.begins_ms + hop.p50_ms for hop in budget.hops)
    # Less than the clock's resolution counts as zero, which avoids dividing by tiny floats.
    scale = room / end_ms if end_ms > 1e-9 else 0.0
    lines = [head]
    was_joined = False
    for hop in budget.hops:
        numbers = _number(hop.p50_ms) + _number(hop.p99_ms, was_joined) + _number(hop.worst_ms, was_joined)
        mark = " ┐" if hop.is_joined_with_next else " ┘" if was_joined else "  "
        lines.append(f"{hop.name:<{NAME_WIDTH}}{numbers}{mark}  {_bar(hop, scale, room)}".rstrip())
        was_joined = hop.is_joined_with_next
    lines.append("")
    for total in budget.totals:
        numbers = _number(total.p50_ms) + _number(total.p99_ms) + _number(total.worst_ms)
        lines.append(f"{total.name:<{NAME_WIDTH}}{numbers}")
    return lines


def _number(value: float | None, is_part: bool = False) -> str:
    if value is None:
        return ("" if is_part else "-").rjust(NUMBER_WIDTH)
    return f"{value:.2f}".rjust(NUMBER_WIDTH)


def _bar(hop: Hop, scale: float, room: int) -> str:
    # After rounding, a hop has at least a sliver, and nothing exceeds the edge.
    before = min(round(hop.begins_ms * scale), room - 1)
    eighths = min(max(1, round(hop.p50_ms * scale * 8)), (room - before) * 8)
    return " " * before + "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()
