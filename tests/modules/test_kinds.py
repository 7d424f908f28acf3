"""What layers of each kind see, with and without a mask, and how often a mask is made."""

from __future__ import annotations

import pytest
import torch
from stubs import check, new_pass
from torch import Tensor

from st_reba.modules.kinds import KINDS, PassMasks


def written(mask: Tensor) -> list[str]:
    return ["".join("x" if seen else "." for seen in row) for row in mask.tolist()]


def masks(lengths: tuple[int, ...] = (4,), m: int = 1) -> PassMasks:
    return PassMasks(new_pass([(0, length, length) for length in lengths]), m)


def triangle(length: int) -> Tensor:
    return torch.ones(1, 1, length, length, dtype=torch.bool).tril()


CASES: dict[tuple[str, int], list[str]] = {
    ("backward", 1): ["xxxx", ".xxx", "..xx", "...x"],
    ("bidirectional", 1): ["xxxx", "xxxx", "xxxx", "xxxx"],
    ("nosink-forward", 0): ["x...", "xx..", "xxx.", "xxxx"],
    ("nosink-forward", 1): ["x...", ".x..", ".xx.", ".xxx"],
    ("nosink-forward", 2): ["x...", "xx..", "..x.", "..xx"],
    ("nosink-bidirectional", 1): ["xxxx", ".xxx", ".xxx", ".xxx"],
    ("nosink-bidirectional", 3): ["xxxx", "xxxx", "xxxx", "...x"],
    ("nosink-bidirectional", 5): ["xxxx", "xxxx", "xxxx", "xxxx"],
    ("rerouted", 1): ["x..x", "xx.x", "xxxx", "xxxx"],
}


@pytest.mark.parametrize(("kind", "m"), CASES)
@pytest.mark.parametrize("form", ["none", "boolean", "additive"])
def test_masks(kind: str, m: int, form: str) -> None:
    own = {
        "none": None,
        "boolean": triangle(4),
        "additive": torch.zeros(1, 1, 4, 4).masked_fill(~triangle(4), -torch.inf),
    }[form]
    made = masks(m=m).mask(kind, own, causal=True, dense=True)
    assert written(made[0, 0]) == CASES[kind, m]
    assert (masks(m=m).mask(kind, None, causal=True) is None) == (KINDS[kind].fast is not None)


WINDOWED = {
    "backward": ["xx...", ".xx..", "..xx.", "...xx", "....x"],
    "bidirectional": ["xx...", "xxx..", ".xxx.", "..xxx", "...xx"],
    "nosink-bidirectional": ["xx...", ".xx..", ".xxx.", "..xxx", "...xx"],
    "rerouted": ["x...x", "xx..x", ".xx.x", "..xxx", "...xx"],
}


@pytest.mark.parametrize("kind", WINDOWED)
def test_window(kind: str) -> None:
    """It is kept, and is as wide to the right where a layer looks there."""
    own = triangle(5).triu(-1)
    assert written(masks((5,)).mask(kind, own, causal=True)[0, 0]) == WINDOWED[kind]
    assert masks((5,)).mask("forward", own, causal=True) is own


PADDED = {
    "backward": ["xxx", ".xx", "..x"],
    "bidirectional": ["xxx", "xxx", "xxx"],
    "nosink-forward": ["x..", ".x.", ".xx"],
    "nosink-bidirectional": ["xxx", ".xx", ".xx"],
    "rerouted": ["x.x", "xxx", "xxx"],
}


@pytest.mark.parametrize("kind", PADDED)
@pytest.mark.parametrize("given", [False, True])
def test_padding(kind: str, given: bool) -> None:
    """It is a key for nobody but itself, and never the last token."""
    real = torch.tensor([[True] * 4, [True, True, True, False]])
    own = triangle(4) & real[:, None, None] if given else None
    made = masks((4, 3)).mask(kind, own, causal=True)
    assert written(made[0, 0]) == CASES[kind, 1] and written(made[1, 0, :3, :3]) == PADDED[kind]
    assert not (made[1, 0] & ~real[1] & ~torch.eye(4, dtype=torch.bool)).any()
    assert made.any(dim=-1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_entries(kind: str) -> None:
    """What an entry says of itself is what its rule does, and its fast way computes what its mask shows."""
    entry = KINDS[kind]
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 6, 4, generator=generator, dtype=torch.float64)

    def attention(query: Tensor, key: Tensor, value: Tensor, causal: bool) -> Tensor:
        hidden = ~triangle(query.shape[2]) if causal else torch.zeros(1, dtype=torch.bool)
        scores = (query @ key.mT).masked_fill(hidden, -torch.inf)
        return (scores.softmax(-1) @ value).transpose(1, 2)

    for m in (0, 1, 3, 9):
        seen = entry.sees(triangle(6), m=m)
        assert seen.triu(1).any() == entry.looks_ahead
        assert torch.equal(seen, entry.sees(triangle(6))) == (not entry.hides_sink or m in (0, 9))
        if entry.fast is None:
            continue
        # A base that looks both ways by itself can look no other way.
        for causal in (True, False) if "bidirectional" in kind else (True,):
            wanted = (query @ key.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ value
            got = entry.fast(attention, query, key, value, m, causal)
            torch.testing.assert_close(got, wanted.transpose(1, 2))


def test_unknown_kind() -> None:
    """Never another one in its place."""
    with pytest.raises(ValueError, match=r"'backwards' is not known|backwards.*Did you mean 'backward'"):
        masks().mask("backwards", None, causal=True)


def test_masks_that_cannot_be_converted() -> None:
    """Told after the pass: before, no number of a mask is read."""
    for own, error in (
        (torch.full((1, 1, 4, 4), -0.5), "adds position biases to its mask"),
        (triangle(4) & ~torch.eye(4, dtype=torch.bool), "chooses its keys by an indexer"),
    ):
        run = new_pass([(0, 4, 4)])
        assert PassMasks(run, 1).mask("bidirectional", own, causal=True) is not None
        with pytest.raises(ValueError, match=error):
            check(run)
    with pytest.raises(ValueError, match=r"\(1, 1, 4, 6\) for 4 tokens"):
        masks().mask("bidirectional", torch.ones(1, 1, 4, 6, dtype=torch.bool), causal=True)


def test_made_once() -> None:
    """For all layers of a kind that share a mask, also where each cuts its own view of it."""
    wide = torch.nn.functional.pad(triangle(4), (0, 1))
    made = masks((4, 3))
    first = made.mask("bidirectional", wide[..., :4], causal=True)
    assert made.mask("bidirectional", wide[..., :4], causal=True) is first
    assert made.mask("backward", wide[..., :4], causal=True) is not first
    assert made.mask("bidirectional", triangle(4), causal=True) is not first
