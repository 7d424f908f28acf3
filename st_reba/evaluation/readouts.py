"""Vectors of many layers and poolings from one forward pass; methods with the same input and masks share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from sentence_transformers import SentenceTransformer

from ..assembly import build_model
from ..encode import DEFAULT_BATCH_TOKENS, computed_positions, encode_texts, transformer_of
from ..methods import Method, Options
from .shared_pass import Readout, TokenRange, run_pass
from .vectors import Vectors, normalize_rows

_METHOD_OPTIONS = frozenset(option.name for option in fields(Method))
# Options that affect only what is read from a pass. Mask options are listed too, because `_can_share_pass` compares the
# masks themselves; m is not.
_READING_OPTIONS = frozenset(
    {
        "name",
        "pooling",
        "pooled",
        "include_special",
        "normalize_weights",
        "normalize",
        "filter",
        "implementation",
        "setting",
        "k",
        "k0",
        "layer",
        "read",
        "join",
        "final_norm",
    }
)


def load_base(base: Any, **loading_options: Any) -> SentenceTransformer:
    """Load a base once, for all the functions here; arguments as for :func:`st_reba.build`.

    Example:
        >>> depth_of(load_base("mini"))
        6
    """
    return build_model(base, "classical", pooling="mean", check=False, **loading_options)


def depth_of(model: SentenceTransformer) -> int:
    """Number of layers L."""
    return int(transformer_of(model).depth)


def build_on(
    base_model: SentenceTransformer,
    method: Method,
    **options: Any,
) -> SentenceTransformer:
    """Build a method on the weights of a loaded base; nothing is copied."""
    transformer = transformer_of(base_model)
    if method.max_seq_length is None:
        recipe = transformer.recipe or {}
        method = replace(method, max_seq_length=recipe.get("max_seq_length"))
    return build_model(transformer.model, method, tokenizer=transformer.tokenizer, **options)


def build_with_prompts(
    base_model: SentenceTransformer,
    method: Method,
    **options: Any,
) -> SentenceTransformer:
    """Like `build_on`, with the prompts that the base was loaded with."""
    return build_on(
        base_model,
        method,
        prompts=base_model.prompts,
        default_prompt_name=base_model.default_prompt_name,
        **options,
    )


def encode_methods(
    base_model: SentenceTransformer,
    methods: Sequence[Method],
    texts: Sequence[str],
    *,
    token_ranges: Sequence[TokenRange] | None = None,
    batch_tokens: int = DEFAULT_BATCH_TOKENS,
    progress: Callable[[int], object] | None = None,
    check: bool = True,
    **input_options: Any,
) -> dict[Method, Vectors]:
    """Encode texts by each method; methods with the same input and masks run once.

    Args:
        base_model, methods, texts: A loaded base, the methods, the texts.
        token_ranges: For vectors of words: the content tokens (first, end) of a word in each text.
            Mean and last are taken over its tokens in the last copy, ReBA's mean over their e_i.
            Only for methods with one template that share passes.
        batch_tokens: Positions per forward pass.
        progress: Called after each batch with the number of positions that it computed for its
            texts.
        check: As for ``build``.
        **input_options: ``task`` and ``prompt``, as for ``encode``; ``task`` is ``"query"`` or
            ``"document"``.

    Returns:
        By method, [N, d] float32, scaled to length 1 where the method normalizes.

    Example:
        >>> methods = [Method("echo"), Method("reba", pooling="mean", layer=4)]
        >>> [vectors.shape for vectors in encode_methods(load_base("mini"), methods, ["你好", "Hello"]).values()]
        [(2, 192), (2, 192)]
    """
    vectors_by_method: dict[Method, Vectors] = {}
    for method_group in group_by_pass(methods, depth_of(base_model)).values():
        group_vectors = MethodGroup(base_model, method_group, check=check).encode(
            texts,
            token_ranges=token_ranges,
            batch_tokens=batch_tokens,
            progress=progress,
            **input_options,
        )
        vectors_by_method.update(group_vectors)
    return {method: vectors_by_method[method] for method in methods}


class MethodGroup:
    """Methods that are read from one pass, with the model that runs it.

    Args:
        base_model: A loaded base.
        methods: A group of :func:`group_by_pass`.
        check: As for ``build``.
    """

    def __init__(
        self,
        base_model: SentenceTransformer,
        methods: Sequence[Method],
        *,
        check: bool = True,
    ) -> None:
        self.methods = methods
        self.model = build_on(base_model, methods[0], check=check)  # runs the most layers
        # Empty: the only method's model runs by itself.
        self.readouts: dict[Method, Readout] = {}
        for method in methods:
            readout = readout_of(method, depth_of(base_model))
            if readout is not None:
                self.readouts[method] = readout

    def count_positions(self, texts: Sequence[str], input_options: Options) -> int:
        """Positions that the pass computes for texts; arguments as for :func:`encode_methods`."""
        return sum(computed_positions(self.model[0], texts, input_options))

    def encode(
        self,
        texts: Sequence[str],
        *,
        token_ranges: Sequence[TokenRange] | None = None,
        batch_tokens: int = DEFAULT_BATCH_TOKENS,
        progress: Callable[[int], object] | None = None,
        **input_options: Any,
    ) -> dict[Method, Vectors]:
        """Vectors of texts by each method; arguments and result as for :func:`encode_methods`."""
        if token_ranges is not None:
            self._check_words()
        if self.readouts:
            vectors_by_readout = run_pass(
                self.model,
                list(dict.fromkeys(self.readouts.values())),
                texts,
                token_ranges=token_ranges,
                batch_tokens=batch_tokens,
                progress=progress,
                **input_options,
            )
            vectors_by_method: dict[Method, Vectors] = {}
            for method, readout in self.readouts.items():
                vectors = vectors_by_readout[readout]
                vectors_by_method[method] = normalize_rows(vectors) if method.normalize else vectors
            return vectors_by_method
        (method,) = self.methods
        vectors = encode_texts(self.model, texts, batch_tokens=batch_tokens, **input_options)
        if progress is not None:
            progress(self.count_positions(texts, input_options))
        return {method: vectors}

    def _check_words(self) -> None:
        """Refuse methods that have no vectors of words."""
        method = self.methods[0]
        if not self.readouts or method.templates is not None:
            raise ValueError(f"{method}: words have no vector here. Use st_reba.encode_words.")


def readout_of(method: Method, depth: int) -> Readout | None:
    """The readout of a method, on a base with L layers (``depth``); None: its model has to run by itself."""
    pooling = method.pooling_spec.readout
    reads_outputs = method.read == "attention"
    needs_own_model = [
        method.name == "reba" and reads_outputs,
        method.filter is not None,
        method.implementation != "paper",
        method.chunk is not None,
        method.pooled is not None,
        method.include_special,
        method.normalize_weights,
        not method.final_norm,
    ]
    layers = _layers_of(method, depth)
    if pooling is None or layers is None or any(needs_own_model):
        return None
    first_layer, last_layer = layers
    if _masks_of(method, last_layer) is None:
        return None
    return Readout(last_layer, pooling, first_layer if reads_outputs else None)


def _layers_of(method: Method, depth: int) -> tuple[int, int] | None:
    """First and last layer that a method reads, from 1; None: no readout covers what it reads."""
    if isinstance(method.layer, tuple) and method.read != "attention":
        return None
    try:
        first_layer, last_layer = method.read_layers(depth)
    except ValueError:
        return None  # build says that there is no such layer
    if first_layer == 0:
        return None
    return first_layer, last_layer


def group_by_pass(methods: Sequence[Method], depth: int) -> dict[Method, list[Method]]:
    """Group methods by the pass that they are read from, under the method that runs the most layers.

    Example:
        >>> groups = group_by_pass([Method("echo"), Method("reba", layer=3), Method("classical")], 6)
        >>> {str(pass_method): list(map(str, method_group)) for pass_method, method_group in groups.items()}
        {'echo': ['echo', 'reba:layer=3'], 'classical': ['classical']}
    """

    def last_layer(method: Method) -> int:
        readout = readout_of(method, depth)
        return 0 if readout is None else readout.layer

    groups: dict[Method, list[Method]] = {}
    for method in sorted(methods, key=last_layer, reverse=True):
        for pass_method, method_group in groups.items():
            if _can_share_pass(method, pass_method, depth):
                method_group.append(method)
                break
        else:
            groups[method] = [method]
    return groups


def _can_share_pass(
    method: Method,
    pass_method: Method,
    depth: int,
) -> bool:
    readout = readout_of(method, depth)
    pass_readout = readout_of(pass_method, depth)
    if readout is None or pass_readout is None or _input_key(method) != _input_key(pass_method):
        return False
    pass_masks = _masks_of(pass_method, pass_readout.layer) or []
    return pass_masks[: readout.layer] == _masks_of(method, readout.layer)


def _input_key(method: Method) -> str:
    """Methods with equal keys see the same tokens; a new option counts until it is in ``_READING_OPTIONS``."""
    key: dict[str, object] = {}
    for option_name in _METHOD_OPTIONS - _READING_OPTIONS:
        key[option_name] = getattr(method, option_name)
    key["template"] = method.full_template
    if method.full_template is None:
        key["repeats"] = 1 if method.has_one_copy else method.repeats or 2
    if method.templates is not None:
        key["weights"] = method.template_weights
    return repr(sorted(key.items()))


def _masks_of(method: Method, layer_count: int) -> list[str] | None:
    """The masks of a model with some layers; None: some of them run twice."""
    plan = method.plan_layers(layer_count)
    return None if plan.second else plan.layer_masks
