"""The pages. Each module has `routes`.

overview   /, what needs help, /topics and each of them
messages   /messages, one message and its items, /failures, /lanes, /jobs
instances  /instances, /schedules, /locks, /system
audit      /audit: who changed what, and why; /writes: one that was begun, how far it is
changing   /change: rerun, discard and cancel messages; /act: pause a topic, and the like
login      /login, /logout, /theme
"""

from __future__ import annotations

from typing import Any

from starlette.routing import BaseRoute

from msgworker.web.pages import audit, changing, instances, login, messages, overview
from msgworker.web.site import with_badges

PAGES: tuple[Any, ...] = (overview, messages, instances, audit, changing, login)
NAV = [
    ("Overview", "overview"),
    ("Messages", "messages"),
    ("Failures", "failures"),
    ("Lanes", "lanes"),
    ("Jobs", "jobs"),
    ("Instances", "instances"),
    ("Topics", "topics"),
    ("Schedules", "schedules"),
    ("Locks", "locks"),
    ("Audit", "audit"),
    ("System", "system"),
]
"""Each page of the navigation, and the name of its route."""
routes: list[BaseRoute] = [with_badges(route) for page in PAGES for route in page.routes]
