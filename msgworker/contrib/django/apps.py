"""The app for INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules

from msgworker.config import Settings
from msgworker.contrib.django.connection import options


class MsgworkerConfig(AppConfig):
    """Imports the modules of handlers of all installed apps, as Django's admin does. A wrong
    setting, and a wrong handler at its own line, end the start."""

    name = "msgworker.contrib.django"
    label = "msgworker"
    verbose_name = "msgworker"

    def ready(self) -> None:
        asked = options()
        Settings.of({name: value for name, value in asked.app.items() if name != "label"})
        autodiscover_modules(*asked.modules)
