"""Memory: what a run needs at its peak, and what there is."""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Callable
from pathlib import Path


def keep_memory() -> bool:
    """Let the C library (glibc) keep what is freed, as torch's own allocator on a GPU does; return whether it does.

    Else every large tensor's memory goes back to the kernel and comes anew, page by page: that takes a tenth of the
    time, both with and without st_reba, and varies by more than what is to be measured.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    mmap_max, trim_threshold = -4, -1
    return set_option is not None and bool(set_option(mmap_max, 0)) and bool(set_option(trim_threshold, -1))


def settle() -> None:
    """Collect garbage, and let later collections pass over what is left: modules and models, half a second's work."""
    gc.collect()
    gc.freeze()


def peak(run: Callable[[], object], device: str) -> int | None:
    """Bytes that one run needs at its peak above what was held before it, the weights; None: cannot be measured.

    On a GPU: of torch's allocator. On Linux: the kernel's own high-water mark of the process's resident memory
    (VmHWM, reset through /proc/self/clear_refs), after memory that was freed has been given back.
    """
    gc.collect()
    if device != "cpu":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - held)
    try:
        _give_back()
        Path("/proc/self/clear_refs").write_text("5")
        before = _kibibytes("/proc/self/status", "VmRSS")
        run()
        return max(0, _kibibytes("/proc/self/status", "VmHWM") - before)
    except OSError:
        return None


def available(device: str) -> float:
    """Bytes that may still be had; infinite where nobody tells."""
    if device != "cpu":
        import torch

        free, _ = torch.cuda.mem_get_info()
        # What torch's allocator holds for itself is free too.
        return float(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
    try:
        _give_back()
        return float(_kibibytes("/proc/meminfo", "MemAvailable"))
    except OSError:
        return math.inf


def _give_back() -> None:
    """Make the C library hand free memory back, or it would be used again unseen."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        raise OSError("this C library keeps what is free")
    trim(0)


def _kibibytes(file: str, name: str) -> int:
    """A line of the kernel's, in bytes."""
    for line in Path(file).read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the kernel tells no {name}")
