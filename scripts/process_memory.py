"""Memory of this process, by the kernel's own record; Linux only.

``ru_maxrss`` of the ``resource`` module would begin with the memory of the process that started
this one.
"""

from __future__ import annotations

from pathlib import Path


def peak_bytes() -> int:
    """The most memory that this process has held."""
    return _status_bytes("VmHWM")


def held_bytes() -> int:
    """The memory that this process holds now."""
    return _status_bytes("VmRSS")


def _status_bytes(field_name: str) -> int:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    for line in status.splitlines():
        name, _, value = line.partition(":")
        if name == field_name:
            return int(value.split()[0]) * 1024
    raise OSError(f"/proc/self/status has no {field_name}")
