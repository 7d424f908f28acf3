"""``python -m st_reba.cli``."""

from __future__ import annotations

import sys

from .app import main

sys.exit(main())
