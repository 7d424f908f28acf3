"""One pass gives what models of their own give; filters are fitted on other items than those they are scored on."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marks import slow_but
from searched import TEXTS

import st_reba
from st_reba.evaluation import passes
from st_reba.evaluation.passes import costs_of, encode_arm, laid_out
from st_reba.evaluation.space import Space
from st_reba.evaluation.trials import POOLED, Arm, Read, Trial

# Of many lengths, one of them repeated.
ASKED = [*TEXTS[:3], "hi", "雨", *TEXTS[160:162], TEXTS[0] + TEXTS[1]]
EVERYTHING = Space(
    templates=(None, "echo", "prompteol"),
    repeats=(1, 2, 3),
    separators=("", " / "),
    kinds=("bidirectional", "nosink-bidirectional", "nosink-forward", "backward", "rerouted"),
    norms=(True, False),
)


@pytest.mark.parametrize(
    ("name", "options", "arms", "each"),
    # The deepest has few arms, as each of its layers is a method: most arms are the tiny ones'.
    slow_but(
        [("mini", {"max_seq_length": 40}, 2, 1), ("gpt2", {}, 5, 2), ("qwen2", {}, 4, 2)], "gpt2", "qwen2", rows=True
    ),
)
def test_a_pass_gives_what_models_give(
    base: Callable[..., str], name: str, options: dict[str, object], arms: int, each: int, tmp_path: Path
) -> None:
    drawn = random.Random(f"{name}{options}")
    loading: dict[str, Any] = {"device": "cpu", "dtype": "float32", "check": False, **options}
    transformer: Any = st_reba.build(base(name), "classical", **loading)[0]
    depth = transformer.depth
    every = EVERYTHING.arms(depth)
    plain = [arm for arm in every if arm.kind == "forward"]
    sinks = [arm for arm in every if arm.sink is not None]
    seen = set()
    for number, arm in enumerate([drawn.choice(plain), drawn.choice(sinks), *drawn.sample(every, arms - 2)]):
        reads = EVERYTHING.reads(arm, depth)
        (tmp_path / f"{number}").mkdir()
        encoded = encode_arm(transformer, arm, reads, ASKED, tmp_path / f"{number}")
        assert encoded.reads == reads
        assert encoded.tokens == costs_of(transformer, [arm], ASKED).total(arm, ASKED)
        by_pooled = {pooled: [read for read in reads if read.pooled == pooled] for pooled in POOLED}
        some = [drawn.choice(found) for found in by_pooled.values() if found]
        for read in [*some, *drawn.sample(reads, each)]:
            model = st_reba.build(base(name), **Trial(arm, read).arguments(depth), **loading)
            assert np.abs(encoded[read] - model.encode(ASKED)).max() < 2e-6, f"{arm}; {read}"
            seen.add(read.pooled)
    assert {"mean", "last"} < seen
    # Nothing of the arms is left behind in the backbone that they share.
    whole = Read(depth, depth, True, "mean")
    (tmp_path / "again").mkdir()
    again = encode_arm(transformer, Arm(), [whole], ASKED, tmp_path / "again")
    plainly = st_reba.build(base(name), "classical", pooling="mean", **loading).encode(ASKED)
    assert np.abs(again[whole] - plainly).max() < 2e-6


def test_vectors_wait_on_disk(base: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    transformer: Any = st_reba.build(base("gpt2"), "classical", device="cpu")[0]
    reads = [Read(0, 0, True, "mean"), Read(1, 2, True, "mean", "concat")]
    found = []
    for waiting in (1 << 28, 0):
        monkeypatch.setattr(passes, "_WAITING", waiting)
        folder = tmp_path / str(waiting)
        folder.mkdir()
        encoded = encode_arm(transformer, Arm(), reads, ASKED, folder)
        width = transformer.get_embedding_dimension()
        sizes = {int(path.stem): path.stat().st_size for path in folder.iterdir()}
        assert sizes == {0: 4 * width * len(ASKED), 1: 8 * width * len(ASKED)}
        found.append([encoded[read] for read in reads])
        assert not encoded._waiting
    assert all(np.array_equal(*pair) for pair in zip(*found, strict=True))


def test_costs_by_hand() -> None:
    transformer: Any = st_reba.build("mini", "classical", device="cpu", max_seq_length=40)[0]
    for arm in (Arm(), Arm(repeats=3, separator=" / "), Arm("echo"), Arm("prompteol")):
        running = laid_out(transformer, arm.layout)
        positions = [int(running.preprocess([text])["attention_mask"].sum()) for text in ASKED]
        costs = costs_of(transformer, [arm], ASKED)
        assert costs.total(arm, ASKED) == sum(positions) and max(positions) <= 40
        assert costs.tokens(arm) == pytest.approx(np.mean(positions))
    costs = costs_of(transformer, [Arm(repeats=2)], ["你好", "雨"])
    once, twice = costs.tokens(Arm()), costs.tokens(Arm(repeats=2))
    assert costs.of(Trial(Arm(), Read(6, 6, True, "mean"))) == 1
    assert costs.of(Trial(Arm(repeats=2), Read(1, 3, True, "mean"))) == pytest.approx(twice / once * 3 / 6)
    # Embeddings come through one layer at the least; INTER runs k layers twice.
    assert costs.of(Trial(Arm(), Read(0, 0, True, "mean"))) == pytest.approx(1 / 6)
    inter = Arm(nosink=st_reba.NoSink("inter-bidir", k=2))
    assert costs.of(Trial(inter, Read(6, 6, True, "mean"))) == pytest.approx(8 / 6)
    with pytest.raises(ValueError, match="template 'echo': max_seq_length=9 leaves no room"):
        costs_of(st_reba.build("mini", "classical", max_seq_length=9)[0], [Arm("echo")], ["雨"])  # type: ignore[arg-type]
