"""A small project: SQLite, or the database that CRM_DATABASE names as JSON."""

import json
import os
from pathlib import Path

import django

HERE = Path(__file__).resolve().parent.parent
SECRET_KEY = "of a sample"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "crm.urls"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["customers", "msgworker.contrib.django"]
DATABASES = {
    "default": json.loads(os.environ.get("CRM_DATABASE", "{}"))
    or {"ENGINE": "django.db.backends.sqlite3", "NAME": HERE / "crm.sqlite3"}
}
if DATABASES["default"]["ENGINE"].endswith("sqlite3") and django.VERSION >= (5, 1):
    # A transaction that reads first and then writes would fail beside another writer.
    DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE", "timeout": 20}
MSGWORKER = {"lease_seconds": 30, "backoff_seconds": 1}
