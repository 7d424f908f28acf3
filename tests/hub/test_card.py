"""The card: what it says is what the model has."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard

import st_reba
from st_reba.bases import EMBEDDED
from st_reba.hub import card, save
from st_reba.methods import Method
from st_reba.recipe import recipe

RECORDED = Path(st_reba.__file__).parents[1] / "model_cards"
MODELS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "reba": ({"pooling": "mean", "prompts": {"query": "问："}}, ['- Prompt `query`: `"问："`', "\n  query: 问：\n"]),
    "authors": ({"implementation": "authors"}, ["A^new[T, t]"]),
    "chunk": ({"chunk": 20}, ["pieces of nearly equal length", "content positions t > p", "v' its hidden states"]),
    "special": ({"include_special": True}, ["over all positions t ≥ p of"]),
    "weights": ({"normalize_weights": True}, ["the weights of each e_i divided by their sum"]),
    "echo": ({"method": "echo", "template": "echo"}, ["Every text is laid out as", "copies of a text | 2"]),
    "tasks": ({"template": {"query": "Q: {text}{text}", "document": "{text}{text}"}}, ['as `"Q: {text}{text}"`.']),
    "nosink": ({"method": "nosink", "setting": "mask0&bidir", "k": 4, "k0": 1}, ["; 3-5 bidirectional; 6 nosink-"]),
    "inter": ({"method": "nosink", "setting": "inter-bidir", "k": 2}, ["run again (inter): 5 bidirectional"]),
    "ensemble": ({"method": "prompteol", "template": "contrastive"}, ["n + 25 positions, in each of 2 templates"]),
    "layers": ({"layer": [2, 4]}, ["4 of LlamaModel", "v_t is the mean of the hidden states of layers 2 to 4, each"]),
    "outputs": ({"method": "classical", "read": "attention"}, ["v_t is the mean of the attention outputs"]),
    "layer": ({"layer": 3, "final_norm": False}, ["v_t is the hidden state of layer 3, before the final norm,"]),
}


def saved_card(model: Any, folder: Path, **options: Any) -> str:
    """The card of a model that is saved into a folder."""
    save(model, folder, **{"golden": False, **options})
    return (folder / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", MODELS)
def test_card(name: str, tmp_path: Path) -> None:
    options, wanted = MODELS[name]
    model = st_reba.build("mini", device="cpu", **{"method": "reba", **options})
    text = saved_card(model, tmp_path / "model")
    assert not [each for each in wanted if each not in text]
    assert ("each e_i divided" in text) == (name == "weights") and "golden.json" not in text
    code = (tmp_path / "model" / "st_reba.py").read_bytes()
    lines = code.count(b"\n")
    assert f"| st_reba.py | {lines} | `{hashlib.sha256(code).hexdigest()}` |" in text
    # Its recipe builds the same model.
    (tmp_path / "recipe.yaml").write_text(text.split("```yaml\n")[1].split("```")[0], encoding="utf-8")
    again = st_reba.build(tmp_path / "recipe.yaml", device="cpu")
    assert (again.encode("猫在睡觉") == model.encode("猫在睡觉")).all()


@pytest.mark.parametrize("name", ["mini-reba", "mini-echo", "mini-nosink"])
def test_recorded_cards(name: str, tmp_path: Path) -> None:
    """They are those of today, but for versions and digests."""
    model = st_reba.build(f"zoo:{name}", device="cpu")
    today = saved_card(model, tmp_path / "m", golden=True, name=name, about=recipe(name).about)
    now, then = (
        [each for each in text.splitlines() if not each.startswith(("`gol", "| st_reba"))]
        for text in (today, (RECORDED / f"{name}.md").read_text(encoding="utf-8"))
    )
    assert now == then


def test_names_differ_where_methods_do() -> None:
    """Results are kept by them."""
    cases = [{"method": "reba", **options} for options, _ in MODELS.values()]
    cases += [{"method": "echo", "template": "{text} " * 2 + "x" * length} for length in (90, 91)]
    methods = [Method(each.pop("method"), **each) for each in cases if "prompts" not in each]
    names = {card._name("mini", method, []) for method in methods}
    assert len(names) == len(methods) and all(len(name) <= 80 for name in names)
    assert card._name("mini", Method("echo"), []) == "mini-echo"
    assert card._name("mini", Method("echo"), [{"query": "问："}, None, []]) == "mini-echo-e19ce9"


def test_facts_and_licence(tmp_path: Path) -> None:
    facts = dict(recipe("mini-reba").about) | {"licence": "llama3.2", "note": "A note.", "language": ["de"]}
    facts["scores"] = [{"task": "T", "metric": "m", "value": 1.5, "table": "Table 2"}]
    facts["measured"] = [{"task": "S", "metric": "m", "value": 2.5, "table": "here", "interval": [2, 3]}]
    text = saved_card(st_reba.build("mini", "reba"), tmp_path / "m", license="llama3.1", about=facts)
    data = ModelCard(text).data
    assert (data.license, data.language) == ("llama3.1", ["de"])
    for wanted in ("A note.", "Built with Llama.", "| S | m | 2.5 (2–3) | here |", "not measured with this model"):
        assert wanted in text


def test_trained_models_say_so_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = st_reba.build("mini", "reba")
    model._model_card_text = "# x\n\n## Training Details\n\nOn pairs.\n\n## Citation\n"
    first, again = saved_card(model, tmp_path / "a"), st_reba.load(tmp_path / "a")
    for text in (first, saved_card(again, tmp_path / "b")):
        assert "## Training\n\nOn pairs.\n" in text and "No weight was trained" not in text
        assert "base_model_relation" not in text
    again.model_card_data.train_datasets = [{}]
    made = "sentence_transformers.base.model_card.generate_model_card"
    monkeypatch.setattr(made, lambda model: "## Training Details\n\nOn more.\n")
    assert card.values_of(again, tmp_path / "b")["training"].strip() == "On more."


def test_a_base_of_the_hub_and_its_files(tmp_path: Path) -> None:
    model: Any = st_reba.build("mini", "reba")
    save(model, tmp_path / "a", golden=False)

    def written(base: str) -> tuple[str, dict[str, Any], dict[str, Any]]:
        model[0].base_model, model[0].base_revision = base, "abc"
        card.write_card(model, tmp_path / "a", license="other")
        text = (tmp_path / "a" / "README.md").read_text(encoding="utf-8")
        return text, yaml.safe_load(text.split("---")[1]), yaml.safe_load(text.split("```yaml\n")[1].split("```")[0])

    text, data, again = written("org/base/file.gguf (GGUF, Q4_K)")
    assert "](https://huggingface.co/org/base) at `abc`" in text and "dequantized" in text
    assert data["base_model"] == "org/base" and data["base_model_relation"] == "quantized"
    assert (data["license_name"], data["license_link"]) == ("as-base-model", "https://huggingface.co/org/base")
    assert again == {"base": "org/base", "revision": "abc", "method": "reba", "gguf_file": "file.gguf"}
    text, data, again = written("file.gguf (GGUF, Q4_K)")
    assert again == {"base": "file.gguf", "revision": "abc", "method": "reba"} and "write its path" in text
    model[0].model.set_attn_implementation("eager")
    text, data, _ = written("org/base")
    assert "It needs st_reba: this base" in text and "base_model_relation" not in data
    for bits, says in (("load_in_4bit", "4 bits (nf4)"), ("_load_in_8bit", "8 bits (int8)"), ("", "")):
        given = {"quant_method": "bnb", "bnb_4bit_quant_type": "nf4", bits: True}
        model[0].model.config.quantization_config = given
        assert card.values_of(model, tmp_path / "a")["quantization"] == f"bnb{', ' if says else ''}{says}"


def test_what_a_strangers_files_hold(tmp_path: Path) -> None:
    """Texts stay texts: in the card of a base, and in the name of one that was loaded."""
    base = shutil.copytree(EMBEDDED["mini"], tmp_path / "base")
    nested = "a: &a [x, x]\nb: &b [*a, *a]\n" + "".join(
        f"c{n}: &c{n} [{', '.join([f'*c{n - 1}' if n else '*b'] * 10)}]\n" for n in range(9)
    )
    (base / "README.md").write_text(f"---\n{nested}license: *c8\nlanguage: *c8\n---\n", encoding="utf-8")
    model: Any = st_reba.build(base, "echo")
    model[0].base_model = "{{ 7 * 7 }}`\n\n# 题\n"
    text = saved_card(model, tmp_path / "a")
    assert "{{ 7 * 7 }}' # 题" in text and "\n# 题" not in text and "model_name: 7-7-题-echo\n" in text
    data = ModelCard(text).data
    assert data.license is None and data.language is None and "a local folder or file" in text
