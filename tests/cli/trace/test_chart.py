"""A budget as a chart."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from millpond.admin.trace.hops import Times, make_budget
from millpond.cli.trace.chart import chart

RECORD = Times(linger=5, send=0.5, broker=4, acknowledge=0.5, process=1, acknowledged=10, arrived=12)


def test_the_chart_is_a_fall_of_bars() -> None:
    assert chart(make_budget([RECORD], [1.5], "replicate"), 80) == [
        "                 p50     p99   worst  ms",
        "linger          5.00    5.00    5.00    ███████████████▍",
        "send            0.50    0.50    0.50                   █▌",
        "append          1.50    4.00    4.00 ┐                   ████▋",
        "replicate       2.50                 ┘                        ███████▊",
        "acknowledge     0.50    0.50    0.50                                 █▌",
        "fetch           2.50    2.50    2.50                                 ███████▊",
        "process         1.00    1.00    1.00                                         ███",
        "",
        "acknowledged   10.00   10.00   10.00",
        "end to end     13.00   13.00   13.00",
    ]


spans = st.floats(0, 9e4)


@given(st.lists(st.builds(Times, *[spans] * 7), min_size=1, max_size=30), st.integers(60, 200), st.data())
def test_any_chart_fits_its_width_and_every_hop_has_a_bar(
    records: list[Times], width: int, data: st.DataObject
) -> None:
    twins = data.draw(st.lists(spans, min_size=1, max_size=5))
    lines = chart(make_budget(records, twins, "replicate"), width)
    assert all(len(line) <= width for line in lines)
    assert sum(line[-1:] in "▏▎▍▌▋▊▉█" and bool(line) for line in lines) == 7


def test_times_that_no_clock_can_tell_apart_from_none() -> None:
    lines = chart(make_budget([Times(0.0, 0.0, 0.0, 0.0, 5e-324, 0.0, 0.0)], [0.0], "replicate"), 80)
    assert sum(line[-1:] in "▏▎▍▌▋▊▉█" and bool(line) for line in lines) == 7
