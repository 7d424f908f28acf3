"""What a repository may say before anything of it is loaded."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

from st_reba.bases import EMBEDDED
from st_reba.modules.guards import check_sizes

MINI = str(EMBEDDED["mini"])


def test_packed_weights(tmp_path: Path) -> None:
    """Quantized weights stand in whole numbers, several in one."""
    save_file({"a": torch.zeros(4, dtype=torch.int32), "b": torch.zeros(3)}, tmp_path / "model.safetensors")
    assert check_sizes(str(tmp_path)) == 4 * 16 + 3
