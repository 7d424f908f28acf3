"""ReBA without st_reba: transformers hands out every attention, and they are reduced afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

from .measuring import Run
from .mistakes import WrongRival
from .pipelines import Loader, Work, ready

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

    from st_reba import RepeatTransformer

STACKED, LOOP = RIVALS = ("output_attentions", "double loop")
# Of the attention of all layers and heads: how often it is held at the peak, scratch included.
HELD = {STACKED: 3.2, LOOP: 1.2}


def fuse_stacked(attentions: Sequence[Tensor]) -> Tensor:
    """[B, T, T]: all layers and heads in one tensor, symmetrized, then the maximum."""
    import torch

    stacked = torch.stack(list(attentions))
    # Halving after the maximum is equal, and spares a copy of everything.
    return (stacked + stacked.transpose(-1, -2)).amax(dim=(0, 2)) / 2


def fuse_by_loops(attentions: Sequence[Tensor]) -> Tensor:
    """[B, T, T]: layer by layer, head by head, a running maximum."""
    import torch

    fused: Tensor | None = None
    for layer in attentions:
        for head in range(layer.shape[1]):
            symmetric = (layer[:, head] + layer[:, head].transpose(-1, -2)) / 2
            fused = symmetric if fused is None else torch.maximum(fused, symmetric)
    assert fused is not None
    return fused


def last_vectors(backbone: Any, features: dict[str, Any], fuse: Callable[[Sequence[Tensor]], Tensor]) -> Tensor:
    """ReBA's e_n of every text, of length 1, from a backbone with eager attention."""
    import torch

    mask, copies = features["attention_mask"], features["copy_ids"]
    output = backbone(
        input_ids=features["input_ids"],
        attention_mask=mask,
        position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
        output_attentions=True,
        use_cache=False,
    )
    places = torch.arange(mask.shape[1], device=mask.device)
    anchor = (places * (copies == 1)).amax(dim=1)
    row = fuse(output.attentions)[torch.arange(len(anchor), device=mask.device), anchor]
    summed = (copies > 0) & (places >= anchor[:, None])
    hidden = output.last_hidden_state
    vectors = torch.einsum("bt,btd->bd", (row * summed).float(), hidden.float())
    return torch.nn.functional.normalize(vectors, dim=-1)


def rival_works(loader: Loader, like: SentenceTransformer) -> list[Work]:
    """Both ways, on the weights and the input of a ReBA model."""
    import torch
    from transformers import AutoModel

    backbone = AutoModel.from_pretrained(
        loader.folder, attn_implementation="eager", dtype=getattr(torch, loader.dtype)
    ).to(loader.device)
    backbone.eval()
    loader.share(backbone)
    transformer = cast("RepeatTransformer", like[0])

    def work(name: str, fuse: Callable[[Sequence[Tensor]], Tensor]) -> Work:
        def forward(texts: Sequence[str]) -> Run:
            features = ready(transformer, texts)
            return lambda: last_vectors(backbone, features, fuse)

        def whole(texts: Sequence[str]) -> Run:
            return lambda: last_vectors(backbone, ready(transformer, texts), fuse)

        return Work(name, forward, whole, 2)

    return [work(STACKED, fuse_stacked), work(LOOP, fuse_by_loops)]


def attention_bytes(transformer: RepeatTransformer, rows: int, length: int) -> int:
    """Bytes of the attention of all layers and heads, for texts of some positions."""
    config = transformer.model.config.get_text_config()
    size = next(transformer.model.parameters()).element_size()
    return int(config.num_hidden_layers) * int(config.num_attention_heads) * rows * length**2 * size


def check_equal(name: str, got: Tensor, wanted: Tensor) -> None:
    """A rival that computes something else is none.

    Raises:
        WrongRival: The vectors differ by more than rounding: 1e-4 in float32, 1e-2 in the cosine in bfloat16.
    """
    import torch

    if wanted.dtype == torch.float32:
        difference, allowed = float((got - wanted).abs().max()), 1e-4
    else:
        difference = float((1 - torch.cosine_similarity(got.float(), wanted.float(), dim=-1)).max())
        allowed = 1e-2
    if not difference <= allowed:
        raise WrongRival(f"{name} differs from ReBA-2 last by {difference:.1e}, more than {allowed:.0e}.")
