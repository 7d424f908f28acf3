"""Several templates a text: the weighted sum of the vectors that each gives alone."""

from __future__ import annotations

import pytest
import torch
from marks import Base
from oracle import assert_close
from pipelines import build, encoded

from st_reba import PromptEnsemble

TEMPLATES = ["A {text} B", 'This: "{text}" is "', "{text}"]


@pytest.mark.parametrize("equal_norms", [True, False])
@pytest.mark.parametrize(
    ("method", "weights"), [("prompteol", (1.0, -0.5, 0.25)), ("reba:pooling=mean", (0.2, 0.3, 0.5))]
)
def test_sum(base: Base, method: str, weights: tuple[float, ...], equal_norms: bool) -> None:
    path = base("llama", "bos_eos")
    model = build(path, method, template=TEMPLATES, weights=weights, equal_norms=equal_norms)
    each = [encoded(build(path, method, template=template)).double() for template in TEMPLATES]
    lengths = [vectors.norm(dim=1, keepdim=True) if equal_norms else 1.0 for vectors in each]
    wanted = sum(weight * one / length for weight, one, length in zip(weights, each, lengths, strict=True))
    for got, vector in zip(encoded(model), wanted, strict=True):
        assert_close(got, vector)


def test_by_default_it_is_the_average(base: Base) -> None:
    path = base("gpt2")
    model = build(path, "prompteol", template=TEMPLATES)
    assert_close(encoded(model), encoded(build(path, "prompteol", template=TEMPLATES, weights=[1 / 3] * 3)).double())


def test_a_zero_vector_stays_zero() -> None:
    vectors = torch.tensor([[3.0, 4.0], [5.0, 6.0], [0.0, 0.0], [0.0, 2.0], [5.0, 6.0], [1.0, 0.0]])
    joined = PromptEnsemble([1.0, 0.0, -1.0])({"sentence_embedding": vectors})["sentence_embedding"]
    assert joined.tolist() == [[0.0, 0.0], [-1.0, 1.0]]


def test_a_transformer_of_another_package_has_one_template() -> None:
    with pytest.raises(ValueError, match="the 1 templates of object"):
        PromptEnsemble([1.0, 1.0]).on_model_ready([object()])
