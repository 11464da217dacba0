"""The pages; each module adds its own to `site.PAGES`.

overview   /, what needs help, /topics and each of them
messages   /messages, one message and its items, /failures, /lanes, /jobs
instances  /instances, /schedules, /locks, /system
audit      /audit: who changed what, and why
changing   /change: rerun, discard and cancel messages; /act: pause a topic, and the like; /edit;
           /writes: one that was begun, how far it is
login      /login, /logout, /theme
"""

from __future__ import annotations

from msgworker.web.pages import (  # noqa: F401 - they add PAGES
    audit,
    changing,
    instances,
    login,
    messages,
    overview,
)

NAV = [
    (name.capitalize(), name)
    for name in (
        *("overview", "messages", "failures", "lanes", "jobs", "instances", "topics"),
        *("schedules", "locks", "audit", "system"),
    )
]
"""Each page of the navigation, and the name of its route."""
