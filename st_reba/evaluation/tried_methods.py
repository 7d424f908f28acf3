"""The methods that tune tries: inputs, masks, layers and poolings; and those of the papers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sentence_transformers import SentenceTransformer

from ..encode import transformer_of
from ..methods import Method
from ..modules.outputs import shows_attention
from ..prompts import TEMPLATES

Wording = str | Mapping[str, str]
# Wordings of PromptEOL in the language of a script. Only the first is tried without labels: the
# others win by labels, but not by parts of texts.
WORDINGS: Mapping[str, tuple[str, ...]] = {
    "CJK": ("prompteol-zh", "prompteol-example-zh"),
    "": ("prompteol", "prompteol-says", "prompteol-example"),
}
# Tried in addition to the named templates for search.
SEARCH_WORDINGS: Mapping[str, tuple[Wording, ...]] = {
    "": (
        {
            "query": 'Search query: "{text}" One keyword for it: "',
            "document": 'Search result: "{text}" One keyword for it: "',
        },
        {
            "query": 'A question: "{text}" In one word, its answer is about: "',
            "document": 'A text: "{text}" In one word, it is about: "',
        },
        "prompteol-says",
    ),
    "CJK": (
        {
            "query": "搜索：“{text}”的关键词是：“",
            "document": "文章：“{text}”的关键词是：“",
        },
        {
            "query": "问：“{text}”用一个词概括，答案是关于：“",
            "document": "文：“{text}”用一个词概括，内容是关于：“",
        },
        "prompteol-zh",
    ),
}
# The most layers that are read from a pass.
_MAX_LAYERS = 16
# Wordings for search that ``build(base, "auto")`` tries.
_AUTO_WORDINGS = 2
# The papers' methods at their published settings, in the short form; NoSink's k is chosen on every base.
PAPERS: Mapping[str, str] = {
    "classical, last": "classical",
    "classical, mean": "classical:pooling=mean",
    "PromptEOL": "prompteol",
    "Echo-2, last": "echo",
    "Echo-2, mean": "echo:pooling=mean",
    "ReBA-2, last": "reba",
    "ReBA-2, mean": "reba:pooling=mean",
}


def at_layers(
    method: Method,
    depth: int,
    first_masked_layer: int | None = None,
) -> list[Method]:
    """A method, read at each layer from the last one down; at some, if there are many.

    Args:
        method: The method.
        depth: The base's number of layers L.
        first_masked_layer: The layer, from 0, from which on upwards tokens look both ways, with the sink hidden; no
            layer below is read. None: masks stay as they are.
    """
    step = max(1, -(-depth // _MAX_LAYERS))
    methods: list[Method] = []
    for layer in range(depth, first_masked_layer or 0, -step):
        method_at_layer = replace(method, layer=None if layer == depth else layer)
        if first_masked_layer is not None:
            masked_count = layer - first_masked_layer
            method_at_layer = replace(method_at_layer, setting="mask0-bidir", k=masked_count)
        methods.append(method_at_layer)
    return methods


def with_outputs(method: Method, depth: int, *first_layers: int) -> list[Method]:
    """A method read at each layer, and as the mean of the attention outputs of each range first_layer … L."""
    methods = at_layers(method, depth)
    for first_layer in first_layers:
        methods.append(replace(method, read="attention", layer=(first_layer, depth)))
    return methods


def mean_in_prompt(prompt: Method) -> Method:
    """The mean of the text in a prompt."""
    return Method("classical", pooling="mean", template=prompt.template or "prompteol")


def similarity_methods(
    depth: int,
    script_name: str,
    *,
    is_small: bool = False,
    has_labels: bool = False,
) -> list[Method]:
    """The methods that are tried for similarity.

    Args:
        depth: The base's number of layers L.
        script_name: Script of the texts, for the wording of PromptEOL; see
            :func:`~st_reba.evaluation.texts.script_of`.
        is_small: Only the few inputs and masks that cover most cases, for ``build(base, "auto")``.
        has_labels: Also try repeated texts and more wordings, which only labels can judge.
    """
    third = depth // 3
    half = depth // 2
    once = Method("classical", pooling="mean")
    (prompt, reverse_prompt), *other_prompts = prompts_of(script_name)
    default_prompt = Method("prompteol", template=search_wordings(script_name)[0])
    methods = [
        *with_outputs(default_prompt, depth, third + 1, half + 1),
        *with_outputs(prompt, depth, third + 1),
        *at_layers(mean_in_prompt(prompt), depth),
        *with_outputs(reverse_prompt, depth, third + 1),
        *at_layers(once, depth),
        *at_layers(replace(once, pooling="last"), depth),
        *at_layers(once, depth, half),
    ]
    if not is_small:
        methods += at_layers(mean_in_prompt(prompt), depth, half)
        methods += at_layers(mean_in_prompt(prompt), depth, third)
        methods += at_layers(once, depth, third)
    if has_labels:
        twice = Method("echo", pooling="mean")
        # The model of the first method runs the pass and counts its work: that of ReBA shares no prefix.
        for name in ("reba", "echo"):
            for pooling in ("mean", "last"):
                methods += at_layers(Method(name, pooling=pooling), depth)
        methods += at_layers(replace(twice, template="echo"), depth)
        methods += at_layers(twice, depth, half)
        methods += at_layers(twice, depth, third)
        other_methods = [method for prompts in other_prompts for method in prompts]
        reversed_default = "reverseol-topic-4-zh" if script_name == "CJK" else "reverseol-word-4"
        other_methods.append(Method("prompteol", template=reversed_default))
        for method in other_methods:
            methods += with_outputs(method, depth, third + 1)
    return methods


def prompts_of(script_name: str) -> list[tuple[Method, Method]]:
    """PromptEOL and ReverseEOL in each wording."""
    prompts: list[tuple[Method, Method]] = []
    for name in WORDINGS.get(script_name, WORDINGS[""]):
        prompt = Method("prompteol", template=None if name == "prompteol" else name)
        reverse_prompt = Method("prompteol", template=name.replace("prompteol", "reverseol"))
        prompts.append((prompt, reverse_prompt))
    return prompts


def search_methods(
    depth: int,
    script_name: str,
    *,
    is_small: bool = False,
) -> list[Method]:
    """The methods that are tried for search; arguments as for `similarity_methods`."""
    wordings = search_wordings(script_name)
    if is_small:
        wordings = wordings[:_AUTO_WORDINGS]
    methods: list[Method] = []
    for wording in wordings:
        prompt = Method("prompteol", template=wording)
        methods += with_outputs(prompt, depth, depth // 3 + 1, depth // 2 + 1)
        methods += at_layers(mean_in_prompt(prompt), depth)
    once = Method("classical", pooling="mean")
    methods += at_layers(once, depth)
    methods += at_layers(replace(once, pooling="last"), depth)
    if not is_small:
        methods += at_layers(once, depth, depth // 2)
    return methods


def default_on(base_model: SentenceTransformer, script_name: str) -> Method:
    """The default of `build` on a base, in the wording for a script."""
    prompt = Method("prompteol", template=search_wordings(script_name)[0])
    transformer = transformer_of(base_model)
    if not shows_attention(transformer.model):
        return prompt
    depth = transformer.depth
    return replace(prompt, read="attention", layer=(depth // 2 + 1, depth))


def search_wordings(script_name: str) -> list[Wording]:
    """The templates for search that are tried: the named ones, and those of ``SEARCH_WORDINGS``."""
    is_cjk = script_name == "CJK"
    wordings: list[Wording] = []
    for name, template in TEMPLATES.items():
        is_for_search = isinstance(template, Mapping) and name.startswith("prompteol")
        if is_for_search and name.endswith("-zh") == is_cjk:
            wordings.append(name)
    wordings += SEARCH_WORDINGS.get(script_name, SEARCH_WORDINGS[""])
    return wordings


def published_methods(
    depth: int,
    script_name: str,
    scores: Mapping[Method, float],
) -> dict[str, Method]:
    """The papers' methods at their published settings; NoSink's k is the better one of two that were scored."""
    methods = {name: Method.parse(short_form) for name, short_form in PAPERS.items()}
    methods["PromptEOL"] = prompts_of(script_name)[0][0]
    once = methods["classical, mean"]
    masked_methods = [at_layers(once, depth, first)[0] for first in (depth // 2, depth // 3)]
    best_masked = max(masked_methods, key=lambda method: scores.get(method, -1.0))
    methods["NoSink, MASK0-BIDIR"] = replace(best_masked, name="nosink")
    return methods
