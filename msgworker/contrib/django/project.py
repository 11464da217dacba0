"""The App of the project for the command line, as `msgworker.contrib.django.project:app`.

Needs DJANGO_SETTINGS_MODULE. Processes that `run --processes` starts come in here too.
"""

from __future__ import annotations

import django
from django.apps import apps

if not apps.ready:
    django.setup()

from msgworker.contrib.django import connection

app = connection.app()
