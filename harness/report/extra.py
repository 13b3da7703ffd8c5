"""The libraries of the extra `report`, which only the page needs, and what is said where they are missing."""

from __future__ import annotations

import importlib.util

_NEEDED = {"jinja2": "Jinja2", "matplotlib": "matplotlib"}


def missing_extra(option: str = "--html") -> list[str]:
    """Why no page can be made here, found without importing anything; `option` asks for one."""
    missing = [name for module, name in _NEEDED.items() if importlib.util.find_spec(module) is None]
    if not missing:
        return []
    return [f"{option} needs {' and '.join(missing)}, not installed here; install it with: pip install 'resume-harness[report]'"]
