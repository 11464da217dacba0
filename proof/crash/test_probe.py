"""The probe says when a database was away, and nothing while it was there."""

from __future__ import annotations

import time
from math import inf

import pytest

from proof.crash.probe import SILENCE_SECONDS, Probe, gaps
from tests.plugin import Database
from tests.support.proxy import Proxy
from tests.support.waiting import until


def test_silence_between_two_writes_is_an_outage() -> None:
    assert list(gaps([0, 0.5, 3.0, 3.5], 4.0)) == [(0.5, 3.0)]
    assert list(gaps([0, 0.5], 2.0)) == [(0.5, inf)]
    assert list(gaps([0.0], 0.9)) == []


@pytest.mark.long
def test_a_way_that_is_closed_is_silent_and_all_of_them_are_an_outage(served: Database) -> None:
    proxies = [Proxy.before(served.url) for _ in range(2)]
    with Probe(*(proxy.url_of(served.url) for proxy in proxies)) as probe:
        proxies[0].refuse()
        until(lambda: probe.silences(0), "one way is silent")
        assert probe.outages() == []
        both = time.monotonic()
        proxies[1].refuse()
        until(probe.outages, "all of them are")
        healed = time.monotonic()
        proxies[1].heal()
        ((away, back),) = probe.past_outages()
    assert both - SILENCE_SECONDS < away < healed - SILENCE_SECONDS
    assert healed < back
    ((away, back),) = probe.silences(0)
    assert away < both - SILENCE_SECONDS
    assert back == inf
    for proxy in proxies:
        proxy.close()
