"""Proves that a PyTorch training job resumes exactly, whenever it dies."""

from __future__ import annotations

from harness import fault
from harness.errors import CapabilityError, HarnessError, UsageError
from harness.scenario import Command, Reference, Scenario, job

__all__ = ["CapabilityError", "Command", "HarnessError", "Reference", "Scenario", "UsageError", "fault", "job"]
__version__ = "0.1.0"
