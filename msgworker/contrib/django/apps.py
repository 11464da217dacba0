"""The app for INSTALLED_APPS."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.module_loading import autodiscover_modules

from msgworker.contrib.django.connection import options


class MsgworkerConfig(AppConfig):
    """Imports the modules of handlers of all installed apps, as Django's admin does."""

    name = "msgworker.contrib.django"
    label = "msgworker"
    verbose_name = "msgworker"

    def ready(self) -> None:
        autodiscover_modules(*options().modules)
