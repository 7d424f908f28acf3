"""Memory: what a run needs at its peak, and what there is."""

from __future__ import annotations

import ctypes
import gc
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any


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


def peak(run: Callable[[], object], device: str) -> tuple[int, object]:
    """Bytes of tensors that one run holds at its peak, above what was held before it, the weights; and what it gave.

    On a GPU: of torch's allocator. On a CPU: of all tensors that the run's operators made and that are still there,
    counted after every operator. The process's resident memory would say as much about the free pieces that the C
    library happens to find: it differs by half between runs of the same code. What an operator takes and gives back
    within itself is not counted.
    """
    gc.collect()
    if device != "cpu":
        import torch

        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        held = torch.cuda.memory_allocated()
        output = run()
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - held), output
    return _live_peak(run)


def _live_peak(run: Callable[[], object]) -> tuple[int, object]:
    """The largest sum of bytes of tensors that a run made and that lived at one time; and what it gave."""
    from torch import Tensor
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    def storages(values: Any) -> dict[int, tuple[Any, int]]:
        found = (leaf.untyped_storage() for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
        return {(reference := StorageWeakRef(each)).cdata: (reference, each.nbytes()) for each in found}

    class Counter(TorchDispatchMode):
        live: dict[int, tuple[Any, int]] = {}
        most = 0

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            # A view shares the memory of what it was made of.
            given = storages((args, kwargs))
            result = function(*args, **(kwargs or {}))
            made = {key: value for key, value in storages(result).items() if key not in given}
            kept = {key: value for key, value in self.live.items() if not value[0].expired()}
            self.live = {**kept, **made}
            self.most = max(self.most, sum(size for _, size in self.live.values()))
            return result

    with Counter() as counter:
        output = run()
    return counter.most, output


def available(device: str) -> float:
    """Bytes that may still be had; infinite where nobody tells."""
    if device != "cpu":
        import torch

        free, _ = torch.cuda.mem_get_info()
        # What torch's allocator holds for itself is free too.
        return float(free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated())
    try:
        return float(_kibibytes("/proc/meminfo", "MemAvailable"))
    except OSError:
        return math.inf


def _kibibytes(file: str, name: str) -> int:
    """A line of the kernel's, in bytes."""
    for line in Path(file).read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"the kernel tells no {name}")
