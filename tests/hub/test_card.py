"""The card: what it says is what the model has, and its examples run."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.hub import save
from st_reba.recipe import read_recipe, recipe

MODELS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "reba": ({"pooling": "mean", "prompts": {"query": "Q: "}}, ["(1/n) Σ_i e_i", '- Prompt `query`: `"Q: "`']),
    "authors": ({"implementation": "authors"}, ["A^new[T, t]"]),
    "special": ({"include_special": True}, ["over all positions t ≥ p of"]),
    "chunk": ({"chunk": 20}, ["pieces of nearly equal length", "ReBAPooling`", "over the content positions t > p"]),
    "weights": ({"normalize_weights": True}, ["the weights of each e_i divided by their sum"]),
    "echo": ({"method": "echo", "template": "echo"}, ["Every text is laid out as", "copies of a text | 2"]),
    "nosink": (
        {"method": "nosink", "setting": "mask0&bidir", "k": 4, "k0": 2},
        ["1-2 forward; 3-4 bidirectional; 5-6 nosink-bidirectional", "In a nosink-bidirectional layer"],
    ),
    "inter": ({"method": "nosink", "setting": "inter-bidir", "k": 2}, ["run again (inter): 5 bidirectional"]),
    "ensemble": ({"method": "prompteol", "template": "contrastive"}, ["in each of 2 templates"]),
    "layers": ({"layer": [2, 4]}, ["4 of LlamaModel", "v_t is the mean of the hidden states of layers 2 to 4, each"]),
    "outputs": ({"method": "classical", "read": "attention"}, ["v_t is the mean of the attention outputs"]),
    "layer": ({"layer": 3, "final_norm": False}, ["v_t is the hidden state of layer 3, before the final norm,"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_card(name: str, tmp_path: Path) -> None:
    options, wanted = MODELS[name]
    model = st_reba.build("mini", device="cpu", **{"method": "reba", **options})
    save(model, tmp_path / "model", golden=name == "reba")
    text = (tmp_path / "model" / "README.md").read_text(encoding="utf-8")
    assert not [each for each in wanted if each not in text]
    assert ("each e_i divided" in text) == (name == "weights")
    assert options.get("method", "reba") in (ModelCard(text).data.tags or ())
    data = ModelCard(text).data
    assert data.license == "apache-2.0" and data.library_name == "sentence-transformers" and not data.base_model
    code = (tmp_path / "model" / "st_reba.py").read_bytes()
    lines = code.count(b"\n")
    assert f"| st_reba.py | {lines} | `{hashlib.sha256(code).hexdigest()}` |" in text
    assert ("golden.json" in text) == (name == "reba")
    assert "|\n\n|" not in text, "the rows of a table follow one another"
    assert "No weight was trained" in text and "write its path" not in text
    # Its recipe builds the same model.
    found = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert found
    (tmp_path / "recipe.yaml").write_text(found[1], encoding="utf-8")
    assert read_recipe(tmp_path / "recipe.yaml").base == "mini"
    again = st_reba.build(tmp_path / "recipe.yaml", device="cpu")
    assert (again.encode("猫在睡觉") == model.encode("猫在睡觉")).all()


def test_names_differ_where_methods_do(base: Callable[..., str], tmp_path: Path) -> None:
    names = set()
    cases = [options for options, _ in MODELS.values()]
    cases += [{"method": "echo", "prompts": {"query": "Q: "}}, {"method": "echo", "template": "{text} " * 2 + "x" * 90}]
    for number, options in enumerate([*cases, {"method": "echo"}]):
        model = st_reba.build(base("deep"), device="cpu", **{"method": "reba", **options})
        save(model, tmp_path / str(number), golden=False)
        names.add(ModelCard.load(tmp_path / str(number) / "README.md").data.model_name)
    assert len(names) == len(cases) + 1 and all(len(name) <= 80 for name in names)


def test_facts_and_licence(tmp_path: Path) -> None:
    facts = dict(recipe("mini-reba").about) | {"licence": "llama3.2", "note": "A note.", "language": ["de"]}
    facts["scores"] = [{"task": "T", "metric": "m", "value": 1.5, "table": "Table 2"}]
    facts["measured"] = [{"task": "S", "metric": "m", "value": 2.5, "table": "here", "interval": [2, 3]}]
    save(st_reba.build("mini", "reba"), tmp_path / "m", golden=False, name="mine", license="llama3.1", about=facts)
    text = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
    data = ModelCard(text).data
    assert (data.model_name, data.license, data.language) == ("mine", "llama3.1", ["de"])
    for wanted in ("A note.", "Built with Llama.", "| S | m | 2.5 (2–3) | here |", "not measured with this model"):
        assert wanted in text


def test_trained_models_say_so_again(tmp_path: Path) -> None:
    model = st_reba.build("mini", "reba")
    model._model_card_text = "# x\n\n## Training Details\n\nOn pairs.\n\n## Citation\n"
    save(model, tmp_path / "a", golden=False)
    again = st_reba.load(tmp_path / "a")
    save(again, tmp_path / "b", golden=False)
    for name in "ab":
        text = (tmp_path / name / "README.md").read_text(encoding="utf-8")
        assert "## Training\n\nOn pairs.\n" in text and "No weight was trained" not in text


def test_a_base_of_the_hub_and_its_files(tmp_path: Path) -> None:
    model: Any = st_reba.build("mini", "reba")
    model[0].base_model, model[0].base_revision = "org/base/file.gguf (GGUF, Q4_K)", "abc"
    save(model, tmp_path / "a", golden=False, license="other")
    text = (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
    assert "](https://huggingface.co/org/base) at `abc`" in text and "dequantized" in text
    data = yaml.safe_load(text.split("---")[1])
    assert data["base_model"] == "org/base" and data["base_model_relation"] == "quantized"
    assert (data["license_name"], data["license_link"]) == ("as-base-model", "https://huggingface.co/org/base")
    found = re.search(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert found and yaml.safe_load(found[1])["base"] == "org/base"
    assert yaml.safe_load(found[1])["gguf_file"] == "file.gguf"


def test_what_a_strangers_files_hold(tmp_path: Path) -> None:
    """Texts stay texts: in the card of a base, and in the name of one that was loaded."""
    base = shutil.copytree(EMBEDDED["mini"], tmp_path / "base")
    nested = "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(
        f"c{n}: &c{n} [{', '.join([f'*c{n - 1}' if n else '*b'] * 10)}]\n" for n in range(9)
    )
    (base / "README.md").write_text(f"---\n{nested}license: *c8\nlanguage: *c8\n---\n", encoding="utf-8")
    model: Any = st_reba.build(base, "echo")
    model[0].base_model = "{{ 7 * 7 }}`\n\n# A heading\n"
    save(model, tmp_path / "a", golden=False)
    text = (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
    assert "{{ 7 * 7 }}' # A heading" in text and "\n# A heading" not in text
    data = ModelCard(text).data
    assert data.license is None and data.language is None
    assert "a local folder or file" in text and "write its path" in text
    assert yaml.safe_load(re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)[0])["method"] == "echo"
