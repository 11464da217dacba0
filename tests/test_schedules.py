"""When schedules fire, as a table: no database, no clock."""

from __future__ import annotations

import random
import zoneinfo
from datetime import UTC, datetime, timedelta
from functools import cache

import pytest
from cronsim import CronSim

from msgworker import schedules as ticks
from msgworker.errors import ConfigError

BERLIN = "Europe/Berlin"


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def local(text: str, zone: str, count: int, after: str) -> list[str]:
    """The next ticks of a cron expression, as local times."""
    when, tick, found = ticks.cron(text, zone), at(after), []
    for _ in range(count):
        tick = when.after(tick)
        found.append(tick.astimezone(zoneinfo.ZoneInfo(zone)).strftime("%d %H:%M %z"))
    return found


@pytest.mark.parametrize(
    ("period", "text"),
    [
        *((300, "every 5m"), ("5m", "every 5m"), (timedelta(minutes=5), "every 5m")),
        *(("90s", "every 90s"), ("1h", "every 1h"), ("7d", "every 7d"), (1, "every 1s")),
    ],
)
def test_equal_periods_have_one_text(period, text):
    assert ticks.every(period).text == text
    assert ticks.ticks_of(text, "UTC") == ticks.every(period)


@pytest.mark.parametrize(
    "period", [0, 0.5, "500ms", 1.5, "2w3", -5, "400d", None, True, "5 min", print]
)
def test_a_period_that_is_no_whole_number_of_seconds_up_to_a_year_is_refused(period):
    with pytest.raises(ConfigError, match=r"every must be .* from 1 s to 366 days"):
        ticks.every(period)


def test_ticks_of_every_are_the_same_wherever_they_are_counted_from():
    when = ticks.every("5m")
    assert when.after(at("2026-03-01 10:02:31")) == at("2026-03-01 10:05")
    assert when.after(at("2026-03-01 10:05")) == at("2026-03-01 10:10")
    assert when.after(at("2026-03-01 10:04:59.999999")) == at("2026-03-01 10:05")
    assert ticks.every("1d").after(at("2026-03-01 10:00")) == at("2026-03-02")
    assert when.after(at("1969-12-31 23:59")) == at("1970-01-01")


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        *(("61 * * * *", "Bad minute"), ("* * * *", "has 4 fields"), ("", "has 0 fields")),
        *(("* * * * * *", "has 6 fields"), ("@daily", "has 1 fields"), (5, "is a text")),
        *(("0 0 30 2 *", "Bad day-of-month"), ("0 0 31 4,6 *", "Bad day-of-month")),
        ("0 25 * * *", "Bad hour"),
        ("0," * 150 + "0 * * * *", "at most 200"),
    ],
)
def test_a_cron_expression_that_is_wrong_or_never_fires_is_refused(expression, reason):
    with pytest.raises(ConfigError, match=reason):
        ticks.cron(expression)


@pytest.mark.parametrize("zone", ["Asia/Shangai", "Europe", "../x", "/etc/passwd", "", None, 5])
def test_an_unknown_time_zone_is_refused(zone):
    with pytest.raises(ConfigError, match="time zone"):
        ticks.cron("* * * * *", zone)


def test_a_machine_without_time_zones_is_told_what_to_install(monkeypatch):
    monkeypatch.setattr(zoneinfo, "available_timezones", lambda: set())
    with pytest.raises(ConfigError, match="pip install tzdata"):
        ticks.cron("* * * * *", "Asia/Nowhere")


def test_a_time_of_day_that_is_left_out_fires_when_the_clocks_have_jumped():
    found = local("30 2 * * *", BERLIN, 3, "2026-03-27 12:00")
    assert found == ["28 02:30 +0100", "29 03:00 +0200", "30 02:30 +0200"]
    twice = local("0,30 2 * * *", BERLIN, 3, "2026-03-28 12:00")  # both would be at 03:00
    assert twice == ["29 03:00 +0200", "30 02:00 +0200", "30 02:30 +0200"]


def test_a_time_of_day_that_comes_twice_fires_once():
    found = local("30 2 * * *", BERLIN, 3, "2026-10-24 12:00")
    assert found == ["25 02:30 +0200", "26 02:30 +0100", "27 02:30 +0100"]
    # Also if it is counted from within the second 02:xx.
    assert local("30 2 * * *", BERLIN, 1, "2026-10-25 01:10") == ["26 02:30 +0100"]


def test_with_a_star_ticks_go_by_elapsed_time_over_a_jump():
    spring = local("*/30 * * * *", BERLIN, 3, "2026-03-29 00:20")
    assert spring == ["29 01:30 +0100", "29 03:00 +0200", "29 03:30 +0200"]
    autumn = local("0 * * * *", BERLIN, 3, "2026-10-24 23:30")
    assert autumn == ["25 02:00 +0200", "25 02:00 +0100", "25 03:00 +0100"]


@pytest.mark.parametrize("zone", ["UTC", BERLIN, "America/Sao_Paulo", "Australia/Lord_Howe"])
@pytest.mark.parametrize("text", ["*/7 * * * *", "30 2 * * *", "15 0 1 * *", "5 1-3 * * 0"])
def test_the_last_tick_is_found_as_if_all_were_counted(text, zone):
    when, random_ = ticks.cron(text, zone), random.Random(f"{text} {zone}")
    for _ in range(4):
        first = when.after(at("2018-10-20") + timedelta(minutes=random_.randrange(600_000)))
        now = first + timedelta(minutes=random_.randrange(9_000))
        tick = first
        while (behind := when.after(tick)) <= now:
            assert behind > tick
            tick = behind
        assert ticks.latest(when, first, now) == tick


def test_the_last_of_years_of_minutes_is_found_without_counting_them(monkeypatch):
    when, steps = ticks.cron("* * * * *"), []
    after = ticks.Cron.after
    monkeypatch.setattr(ticks.Cron, "after", lambda self, x: steps.append(x) or after(self, x))
    assert ticks.latest(when, at("2016-01-01"), at("2026-01-01 00:00:30")) == at("2026-01-01")
    assert len(steps) < 100
    rare = ticks.cron("0 0 29 2 *")
    assert ticks.latest(rare, at("2000-02-29"), at("2026-01-01")) == at("2024-02-29")


NEXT = at("2026-03-01 10:00")


@pytest.mark.parametrize(
    ("catch_up", "late_seconds", "ticks_sent", "next_at"),
    [
        *(("last", -1, None, None), ("all", -1, None, None), ("none", -1, None, None)),
        *(("last", 0, ["10:00"], "10:05"), ("none", 0, ["10:00"], "10:05")),
        ("all", 0, ["10:00"], "10:05"),
        ("last", 299, ["10:00"], "10:05"),
        ("last", 920, ["10:15"], "10:20"),
        ("all", 920, ["10:00", "10:05", "10:10", "10:15"], "10:20"),
        ("none", 60, ["10:00"], "10:05"),
        ("none", 61, [], "10:05"),
        ("none", 920, ["10:15"], "10:20"),  # 20 s late
        ("none", 970, [], "10:20"),
    ],
)
def test_what_is_sent_of_missed_ticks(catch_up, late_seconds, ticks_sent, next_at):
    now = NEXT + timedelta(seconds=late_seconds)
    due = ticks.due(ticks.every("5m"), catch_up, NEXT, None, now)
    if ticks_sent is None:
        assert due is None
        return
    assert due is not None
    assert [tick.strftime("%H:%M") for tick in due.ticks] == ticks_sent
    assert due.next_at.strftime("%H:%M") == next_at


def test_all_missed_ticks_are_sent_a_hundred_at_a_time():
    when, now = ticks.every("1s"), NEXT + timedelta(seconds=249)
    first = ticks.due(when, "all", NEXT, None, now)
    second = ticks.due(when, "all", first.next_at, first.ticks[-1], now)
    third = ticks.due(when, "all", second.next_at, second.ticks[-1], now)
    sent = [*first.ticks, *second.ticks, *third.ticks]
    assert [len(x.ticks) for x in (first, second, third)] == [100, 100, 50]
    assert sent == [NEXT + timedelta(seconds=n) for n in range(250)]
    assert third.next_at == now + timedelta(seconds=1)


@pytest.mark.parametrize("catch_up", ticks.CATCH_UP)
def test_no_tick_up_to_the_last_one_is_sent_again(catch_up):
    last = NEXT + timedelta(minutes=10)
    when = ticks.every("5m")
    assert ticks.due(when, catch_up, NEXT, last, last + timedelta(minutes=4)) is None
    due = ticks.due(when, catch_up, NEXT, last, last + timedelta(minutes=5))
    assert due.ticks == (last + timedelta(minutes=5),)


STARS = (
    "* * * * *",
    "*/15 * * * *",
    "30 * * * *",
    "0 */2 * * *",
    "*/30 2 * * *",
    "* 0,1,2,3 * * *",
)
STARS += ("0 */12 * * *", "7 */5 * * SUN", "*/20 */3 1-7 * *", "*/45 23,0 * * *")


@cache
def gaps() -> list[tuple[str, datetime, timedelta]]:
    """Each jump forward of each zone in some years: when, and how far; one zone for each such
    pair."""
    found: dict[tuple[datetime, timedelta, timedelta], str] = {}
    days = [datetime(2025, 1, 1, tzinfo=UTC) + timedelta(days=n) for n in range(3 * 365)]
    for name in sorted(zoneinfo.available_timezones()):
        zone = zoneinfo.ZoneInfo(name)
        offsets = [zone.utcoffset(day.replace(tzinfo=None)) for day in days]
        for day, one, two in zip(days, offsets, offsets[1:], strict=False):
            was = (day - timedelta(days=1)).astimezone(zone).utcoffset()
            for quarter in range(8 * 24 if one != two else 0):
                at = day + timedelta(minutes=15 * quarter) - timedelta(days=1)
                offset = at.astimezone(zone).utcoffset()
                assert was is not None
                assert offset is not None
                if offset > was:
                    found.setdefault((at, was, offset - was), name)
                was = offset
    return [(name, at, gap) for (at, _, gap), name in found.items()]


@pytest.mark.long
@pytest.mark.parametrize("text", STARS)
def test_no_tick_is_left_out_where_clocks_jump_forward(text: str) -> None:
    """Of all zones: by the clock from before the jump each tick is there, or one at the jump is."""
    for name, jump, gap in gaps():
        when = ticks.cron(text, name)
        begin = jump - timedelta(hours=3)
        found, tick = [], begin
        while tick < jump + timedelta(hours=3):
            tick = when.after(tick)
            found.append(tick)
        assert found == sorted(set(found))
        after = jump.astimezone(zoneinfo.ZoneInfo(name)).replace(tzinfo=None)
        left_out = False
        for wanted in CronSim(text, after - gap - timedelta(seconds=1)):
            if wanted >= after:
                break
            by_old_clock = jump + (wanted - (after - gap))
            assert by_old_clock in found or jump in found, (name, text, wanted)
            left_out |= by_old_clock not in found or by_old_clock == jump
        at_jump = next(CronSim(text, after - timedelta(seconds=1))) == after
        assert (jump in found) == (left_out or at_jump), (name, text)
