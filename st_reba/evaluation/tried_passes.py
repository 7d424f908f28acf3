"""The methods that tune tries: passes (inputs and masks), and the layers and poolings of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sentence_transformers import SentenceTransformer

from ..methods import Method
from ..modules.outputs import shows_attention
from ..prompts import TEMPLATES
from .shared_pass import Readout, transformer_of

Wording = str | Mapping[str, str]
# Wordings of PromptEOL in the language of a script. All but the first are tried only with labels:
# judged by labels they are better, judged by parts of texts they are not.
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
# The method with the same pass as another, but a plain pooling.
_PLAIN_NAMES = {"reba": "echo", "prompteol": "classical"}


@dataclass(frozen=True)
class Pass:
    """One input with one set of masks, which all readouts of it share.

    Args:
        method: The pass at full depth.
        poolings: Poolings of each layer that is read.
        first_masked_layer: The lowest layer whose mask is changed, from 0; None: none is.
        first_output_layers: Read the mean of the attention outputs from each of these layers up to
            the last one.
    """

    method: Method
    poolings: tuple[str, ...]
    first_masked_layer: int | None = None
    first_output_layers: tuple[int, ...] = ()

    def method_of_readout(self, readout: Readout, depth: int) -> Method:
        """The method whose model gives a readout of this pass, on a base with L layers (``depth``)."""
        name = "prompteol"
        pooling = None
        if readout.pooling != "end":
            pooling = readout.pooling.removeprefix("reba-")
            name = _PLAIN_NAMES.get(self.method.name, self.method.name)
            if readout.pooling.startswith("reba-"):
                name = "reba"
        template = self.method.template
        if self.method.name == "prompteol" and name != "prompteol":
            template = template or "prompteol"
        method = replace(
            self.method,
            name=name,
            pooling=pooling,
            template=template,
        )
        if self.first_masked_layer is not None:
            method = replace(method, k=readout.layer - self.first_masked_layer)
        if readout.first_layer is not None:
            return replace(
                method,
                read="attention",
                layer=(readout.first_layer, readout.layer),
            )
        return replace(method, layer=None if readout.layer == depth else readout.layer)

    def readouts(self, depth: int) -> list[Readout]:
        """Readouts of the layers from the lowest changed mask up; of some, if there are many."""
        step = max(1, -(-depth // _MAX_LAYERS))
        readouts: list[Readout] = []
        for pooling in self.poolings:
            for layer in range(depth, self.first_masked_layer or 0, -step):
                readouts.append(Readout(layer, pooling))
        for first_layer in self.first_output_layers:
            readouts.append(Readout(depth, "end", first_layer))
        return readouts


def mask_upper_layers(
    method: Method,
    first_masked_layer: int,
    depth: int,
) -> Pass:
    """A pass in which the upper layers look both ways, with the sink hidden."""
    masked_method = replace(method, setting="mask0-bidir", k=depth - first_masked_layer)
    return Pass(masked_method, ("mean",), first_masked_layer)


def similarity_passes(
    depth: int,
    script_name: str,
    *,
    is_small: bool = False,
    has_labels: bool = False,
) -> list[Pass]:
    """The inputs and masks that are tried for similarity.

    Args:
        depth: The base's number of layers L.
        script_name: Script of the texts, for the wording of PromptEOL; see
            :func:`~st_reba.evaluation.texts.script_of`.
        is_small: Only the few that cover most cases, for ``build(base, "auto")``.
        has_labels: Also try repeated texts and more wordings, which only labels can judge.
    """
    third = depth // 3
    half = depth // 2
    once = Method("classical", pooling="mean")
    twice = Method("echo", pooling="mean")
    (prompt, reverse_prompt), *other_prompts = prompts_of(script_name)
    default_prompt = Method("prompteol", template=search_wordings(script_name)[0])
    passes = [
        Pass(default_prompt, ("end",), first_output_layers=(third + 1, half + 1)),
        Pass(prompt, ("end", "mean"), first_output_layers=(third + 1,)),
        Pass(reverse_prompt, ("end",), first_output_layers=(third + 1,)),
        Pass(once, ("mean", "last")),
        mask_upper_layers(once, half, depth),
    ]
    if not is_small:
        passes.append(mask_upper_layers(prompt, half, depth))
        passes.append(mask_upper_layers(prompt, third, depth))
        passes.append(mask_upper_layers(once, third, depth))
    if has_labels:
        passes.append(Pass(replace(twice, name="reba"), ("mean", "last", "reba-mean", "reba-last")))
        passes.append(Pass(replace(twice, template="echo"), ("mean",)))
        passes.append(mask_upper_layers(twice, half, depth))
        passes.append(mask_upper_layers(twice, third, depth))
        other_methods = [method for prompts in other_prompts for method in prompts]
        reversed_default = "reverseol-topic-4-zh" if script_name == "CJK" else "reverseol-topic-4"
        other_methods.append(Method("prompteol", template=reversed_default))
        for method in other_methods:
            passes.append(Pass(method, ("end",), first_output_layers=(third + 1,)))
    return passes


def prompts_of(script_name: str) -> list[tuple[Method, Method]]:
    """PromptEOL and ReverseEOL in each wording."""
    prompts: list[tuple[Method, Method]] = []
    for name in WORDINGS.get(script_name, WORDINGS[""]):
        prompt = Method("prompteol", template=None if name == "prompteol" else name)
        reverse_prompt = Method("prompteol", template=name.replace("prompteol", "reverseol"))
        prompts.append((prompt, reverse_prompt))
    return prompts


def search_passes(
    depth: int,
    script_name: str,
    *,
    is_small: bool = False,
) -> list[Pass]:
    """The inputs and masks that are tried for search; arguments as for `similarity_passes`."""
    wordings = search_wordings(script_name)
    if is_small:
        wordings = wordings[:_AUTO_WORDINGS]
    first_output_layers = (depth // 3 + 1, depth // 2 + 1)
    passes: list[Pass] = []
    for wording in wordings:
        method = Method("prompteol", template=wording)
        passes.append(Pass(method, ("end", "mean"), first_output_layers=first_output_layers))
    once = Method("classical", pooling="mean")
    passes.append(Pass(once, ("mean", "last")))
    if not is_small:
        passes.append(mask_upper_layers(once, depth // 2, depth))
    return passes


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
    once = Method("classical", pooling="mean")
    masked_methods = [
        mask_upper_layers(once, first, depth).method for first in (depth // 2, depth // 3)
    ]
    best_masked = max(masked_methods, key=lambda method: scores.get(method, -1.0))
    return {
        "classical, last": Method("classical", pooling="last"),
        "classical, mean": once,
        "Echo-2, last": Method("echo", pooling="last"),
        "Echo-2, mean": Method("echo", pooling="mean"),
        "ReBA-2, last": Method("reba", pooling="last"),
        "ReBA-2, mean": Method("reba", pooling="mean"),
        "PromptEOL": prompts_of(script_name)[0][0],
        "NoSink, MASK0-BIDIR": replace(best_masked, name="nosink"),
    }
