"""The run as one picture: revenue per minute, lag of each job, dead letters."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

from matplotlib import dates
from matplotlib import pyplot as plt
from morning import REGIONS
from pond import GROUPS, Sample

COLOURS = ("#1b6ca8", "#3fa796", "#f2a65a", "#b56576")


def draw(path: Path, revenue: dict[tuple[datetime, str], float], samples: list[Sample]) -> None:
    figure, (top, middle, bottom) = plt.subplots(
        3, 1, figsize=(10, 10), gridspec_kw={"height_ratios": [3, 2, 1]}, constrained_layout=True
    )
    minutes = sorted({minute for minute, _ in revenue})
    base: dict[datetime, float] = defaultdict(float)
    for region, colour in zip(REGIONS, COLOURS, strict=True):
        heights = [revenue.get((minute, region), 0.0) for minute in minutes]
        top.bar(minutes, heights, 0.8 / 1440, [base[minute] for minute in minutes], label=region, color=colour)
        for minute, height in zip(minutes, heights, strict=True):
            base[minute] += height
    top.set_title("Revenue per minute, by the time of the order", loc="left")
    top.xaxis.set_major_formatter(dates.DateFormatter("%H:%M"))  # type: ignore[no-untyped-call]
    top.legend(frameon=False, ncols=4, loc="upper left")
    top.set_ylim(0, max(base.values(), default=1.0) * 1.15)
    times = [each.seconds for each in samples]
    for job, colour in zip(GROUPS, COLOURS, strict=False):
        middle.plot(times, [each.lag[job] for each in samples], label=job, color=colour)
    middle.set_title("Lag: records that a job has not finished", loc="left")
    middle.legend(frameon=False, ncols=3, loc="upper left")
    bottom.step(times, [each.dead_letters for each in samples], where="post", color=COLOURS[3])
    bottom.set_title("Dead letters", loc="left")
    bottom.set_xlabel("seconds since the start")
    for axis in (top, middle, bottom):
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(axis="y", alpha=0.3)
        axis.set_ylim(bottom=0)
    figure.savefig(path, dpi=110)
    plt.close(figure)
