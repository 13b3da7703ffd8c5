"""Fault injection: the gate on system calls, damage to files at rest, and disks that are too small."""
