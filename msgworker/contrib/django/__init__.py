"""msgworker in a Django project: `"msgworker.contrib.django"` in INSTALLED_APPS.

`send` runs on Django's own connection, so a message commits or rolls back with what
`transaction.atomic` holds. Handlers are registered with `@handler` in a module `messages` or
`handlers` of any installed app, and run with `manage.py msgworker run`.
"""

from msgworker.contrib.django.connection import app, handler, send, send_many

__all__ = ["app", "handler", "send", "send_many"]
