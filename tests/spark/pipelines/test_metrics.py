"""Metrics in Prometheus's text format, and the server."""

from __future__ import annotations

import re
import urllib.error
import urllib.request

import pytest

from millpond.spark.pipelines.metrics import CONTENT_TYPE, Metrics, read_address, text_of
from millpond.spark.pipelines.progress import JobFigures, Snapshot
from millpond.spark.pipelines.values import DeclarationError

JOB = JobFigures(
    "archive", "archive", "running", 7, 5.5, 9.0, 1234, 1500, 100, 90, 3, figures={"hot": 2, "key": "id"}
)
RUN = Snapshot(
    "orders", "running", 17, 1000, 2000, (JOB, JobFigures("b", "latest")), dead_letters={'a"b\\c\n': 3}
)  # fmt: skip


def test_the_text_has_every_known_figure() -> None:
    text = text_of(RUN)
    labels = 'pipeline="orders",job="archive",kind="archive"'
    for line in (
        'millpond_pipeline_up{pipeline="orders"} 1',
        f"millpond_pipeline_input_rows_per_second{{{labels}}} 5.5",
        f"millpond_pipeline_lag_records{{{labels}}} 1234",
        f"millpond_pipeline_batch_seconds{{{labels}}} 1.5",
        f"millpond_pipeline_rows_out_total{{{labels}}} 90",
        f"millpond_pipeline_bad_records_total{{{labels}}} 3",
        f'millpond_pipeline_job_state{{{labels},state="running"}} 1',
        f'millpond_pipeline_job_state{{{labels},state="failed"}} 0',
        f'millpond_pipeline_figure{{{labels},name="hot"}} 2',
        'millpond_pipeline_dead_letters_total{pipeline="orders",topic="a\\"b\\\\c\\n"} 3',
    ):
        assert line in text.splitlines()
    assert 'lag_records{pipeline="orders",job="b"' not in text, "what is not known is not 0"
    assert 'name="key"' not in text


def test_the_text_is_well_formed() -> None:
    families: set[str] = set()
    for line in text_of(RUN).splitlines():
        kind = re.fullmatch(r"# TYPE (\S+) (?:gauge|counter)", line)
        if kind:
            assert kind[1] not in families, "the samples of a family must be adjacent"
            families.add(kind[1])
        elif not line.startswith("# HELP "):
            sample = re.fullmatch(r'(\w+)\{(?:\w+="(?:[^"\\\n]|\\.)*",?)+\} [-+0-9.e]+', line)
            assert sample, line
            assert sample[1] in families


def test_metrics_are_served_on_loopback() -> None:
    with Metrics("0") as metrics:
        assert metrics.address.startswith("http://127.0.0.1:")
        assert urllib.request.urlopen(metrics.address, timeout=60).read() == b""
        metrics.snapshot = RUN
        answer = urllib.request.urlopen(metrics.address, timeout=60)
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        assert answer.read().decode() == text_of(RUN)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(metrics.address.replace("/metrics", "/other"), timeout=60)
        port = metrics.address.rpartition(":")[2].partition("/")[0]
        with pytest.raises(DeclarationError, match=r"metrics cannot be served at .*in use"):
            Metrics(port)


def test_addresses_have_loopback_as_default_host() -> None:
    assert read_address("9108") == read_address(":9108") == ("127.0.0.1", 9108)
    assert read_address("0.0.0.0:80") == ("0.0.0.0", 80)
    assert read_address("[::1]:80") == ("::1", 80)
    for wrong in ("", "host", "host:", "host:99999", "host:-1"):
        with pytest.raises(DeclarationError, match="is not an address for metrics"):
            read_address(wrong)
