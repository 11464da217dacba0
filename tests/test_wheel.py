"""What the wheel contains, by the selection of its builder."""

from __future__ import annotations

from pathlib import Path

from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parent.parent
WEB = ROOT / "msgworker" / "web"


def test_the_wheel_has_every_template_and_static_file() -> None:
    wanted = {
        path.relative_to(ROOT).as_posix()
        for folder in ("templates", "static")
        for path in (WEB / folder).rglob("*")
        if path.is_file()
    }
    assert {
        "msgworker/web/templates/base.html",
        "msgworker/web/static/htmx.min.js",
        "msgworker/web/static/VENDORED.md",
        "msgworker/web/static/licences/htmx.txt",
    } <= wanted
    found = {one.distribution_path for one in WheelBuilder(str(ROOT)).recurse_included_files()}
    assert wanted - found == set()
