"""`python -m msgworker.web.api > docs/reference/openapi.json`."""

import sys

from msgworker.web.api import ENDPOINTS
from msgworker.web.api.document import text

sys.stdout.write(text(ENDPOINTS))
