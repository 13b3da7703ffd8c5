"""How verdicts are shown. Responsible for: words and layout. Not responsible for: what the verdict is."""

from __future__ import annotations
