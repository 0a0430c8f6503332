"""Where the extra ``explore`` is not installed, its files can be neither imported nor tested."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("fastapi") else ["src/capsella/web/*", "tests/web/*"]
