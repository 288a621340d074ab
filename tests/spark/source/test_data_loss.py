"""Lost records: an error that says what to do, or a warning."""

from __future__ import annotations

import logging

import pytest

from millpond.spark.source.data_loss import DataLost, report_loss


def test_an_error_says_what_to_do() -> None:
    with pytest.raises(DataLost) as raised:
        report_loss("t[0]: offsets 3 to 9", fails=True)
    text = str(raised.value)
    assert "t[0]: offsets 3 to 9" in text
    assert "failOnDataLoss=false" in text
    assert "new checkpoint" in text


def test_a_warning_lets_the_query_go_on(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        report_loss("t[0]: offsets 3 to 9", fails=False)
    assert "records are lost: t[0]: offsets 3 to 9" in caplog.text
