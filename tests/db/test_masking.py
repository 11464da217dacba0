"""Texts without what looks like a secret in a URL."""

from __future__ import annotations

import time

import pytest

from msgworker.db import without


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("get http://bob:hunter2@crm/x failed", "get http://bob:***@crm/x failed"),
        ("amqp://:hunter2@mq", "amqp://:***@mq"),
        ("redis://:p/w#?2@cache:6379/0", "redis://:***@cache:6379/0"),
        ("postgresql+psycopg://u:p@ss@host/db", "postgresql+psycopg://u:***@host/db"),
        ("'http://a:b@c', 'http://d:e@f'", "'http://a:***@c', 'http://d:***@f'"),
        ("https://ghp_0123456789abcdef@git/x", "https://***@git/x"),
        ("url: /v1?id=3&api_key=hunter2&n=1 (refused)", "url: /v1?id=3&api_key=***&n=1 (refused)"),
        ("https://s3/x?X-Amz-Signature=hunter2", "https://s3/x?X-Amz-Signature=***"),
        ("/x?access_token=hunter2#top", "/x?access_token=***#top"),
    ],
)
def test_what_looks_like_a_secret_in_a_url_is_not_shown(text: str, shown: str) -> None:
    assert without(text, ()) == shown


@pytest.mark.parametrize(
    "text",
    [
        "http://crm:8080/users/bob@example.com is gone",
        "http://crm:8080",
        "ssh://git@host/x",
        "http://[::1]:80/a@b",
        "mail bob@example.com: refused",
        "key 'a' = 1; topic=token, n=2",
        "/x?page=2&topic=settle",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without(text, ()) == text


@pytest.mark.parametrize(
    "part", ["http://a:", "://", "?a", "&token", "http://b", "x://" + "a" * 99]
)
def test_a_long_text_takes_no_long_time(part: str) -> None:
    text = (part * 50_000)[:50_000]
    begun = time.process_time()
    without(text, ())
    assert time.process_time() - begun < 1
