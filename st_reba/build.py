"""Base model + method → SentenceTransformer."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize
from sentence_transformers.sentence_transformer.modules import Pooling
from sentence_transformers.util import get_device_name

from .bases import (
    EMBEDDED,
    adapted_model,
    check_loaded,
    check_padding,
    load_error,
    locate,
    tokenizer_of_adapted,
    weights_dtype,
)
from .checks import (
    check_device,
    check_kept,
    check_length,
    check_prompts,
    check_vocabulary,
    choose,
    length,
    locate_tokenizer,
)
from .filtered import with_postfilter
from .modules import (
    SETTINGS,
    ChunkedReBAPooling,
    LayerPlan,
    NoSinkTransformer,
    PromptEnsemble,
    ReBAPooling,
    RepeatTransformer,
    named_plan,
)
from .modules.capture import CaptureSpec
from .modules.ensemble import ensemble_weights
from .postfilter import PostFilter
from .recipe import is_recipe, with_recipe
from .repository import convert_repository, is_repository
from .selfcheck import check_capture, check_plan, hidden_states

__all__ = ["EMBEDDED", "METHODS", "VARIANTS", "build", "weights_dtype"]

# Each method's sentence poolings, its own default first.
METHODS: dict[str, tuple[str, ...]] = {
    "reba": ("last", "mean"),
    "echo": ("last", "mean"),
    "classical": ("last", "mean", "cls"),
    "prompteol": ("last",),
    "nosink": ("mean", "last", "cls"),
}
VARIANTS = ("paper", "published")
_POOLING_MODES: dict[str, Any] = {"last": "lasttoken", "mean": "mean", "cls": "cls"}


def build(
    base: str | os.PathLike[str],
    method: str = "reba",
    *,
    repeats: int = 2,
    pooling: str | None = None,
    template: str | Mapping[str, str] | Sequence[str | Mapping[str, str]] | None = None,
    weights: Sequence[float] | None = None,
    equal_norms: bool = True,
    separator: str = "",
    normalize: bool = True,
    variant: str = "paper",
    max_seq_length: int | None = None,
    dtype: str | torch.dtype | None = None,
    device: str | None = None,
    revision: str | None = None,
    tokenizer: str | os.PathLike[str] | None = None,
    trust_remote_code: bool = False,
    instruction: str = "",
    span: Literal["last_copy", "repeats", "last_copy_and_end", "end", "all"] | None = None,
    compute_matched: bool = False,
    prepend: int = 0,
    include_special: bool = False,
    normalize_weights: bool = False,
    chunk: int | None = None,
    non_finite: Literal["error", "zeros"] | None = None,
    layers: LayerPlan | Mapping[str, Any] | None = None,
    layer: int | Sequence[int] | None = None,
    join: Literal["mean", "concat"] = "mean",
    final_norm: bool = True,
    setting: str | None = None,
    k: int | Literal["all"] | None = None,
    k0: int | None = None,
    m: int = 1,
    check: bool = True,
    prompts: dict[str, str] | None = None,
    padding_side: Literal["left", "right"] | None = None,
    postfilter: str | os.PathLike[str] | PostFilter | None = None,
    token: bool | str | None = None,
    cache_folder: str | None = None,
    local_files_only: bool = False,
    model_kwargs: dict[str, Any] | None = None,
) -> SentenceTransformer:
    """Turn a pretrained decoder into a text embedder.

    Args:
        base: ``"mini"`` (the embedded tiny model), a local folder, a Hub id, or a recipe: a YAML file of arguments,
            which those given here override.
        method: ``"reba"``, ``"echo"``, ``"classical"``, ``"prompteol"`` or ``"nosink"``.
        repeats: Number of copies k (reba, echo). A template's own number of slots wins over the default.
        pooling: ``"last"`` or ``"mean"``; for classical and nosink also ``"cls"``; None: ``"mean"`` for nosink, else
            ``"last"``. (nosink on a sentence-transformers model, None: the model's own input, prompts and pooling.)
        template: Text with ``{text}`` slots, a template's name, or a mapping with ``query`` and ``document``. A list of
            such, or an ensemble's name (``"metaeol"``, ``"contrastive"``; both also with ``-zh``): every text runs in
            all of them, and its vectors are added (see :class:`PromptEnsemble`).
        weights: What they are multiplied by, one a template; None: the named ensemble's, or the average.
        equal_norms: Each of them is divided by its length before.
        separator: Literal text between the copies, without a template.
        normalize: Append ST's ``Normalize``: vectors of length 1.
        variant: ``"paper"``, or ``"published"``: what the authors' code computes (reba; INTER and EXTRA in nosink).
        max_seq_length: Positions M a sequence may have, all copies and special tokens together; None: the model's.
        dtype: Of the weights; None: float32 on a CPU, the checkpoint's own on a GPU.
        device: Where to run, as ``SentenceTransformer`` takes it.
        revision: Hub revision of the base.
        tokenizer: Folder or Hub id whose tokenizer is used instead of the base's own.
        trust_remote_code: Allow the base's own modelling code.
        instruction: Value of the template's ``{instruction}`` where no prompt is given.
        span: Which positions echo, classical and prompteol pool; None: the method's own (see RepeatTransformer).
        compute_matched: Halve the content budget (echo, reba).
        prepend: Token Prepending in the first so many layers, with any method: a placeholder in front of the text
            takes over the last token's hidden state (see :class:`RepeatTransformer`).
        include_special: ReBA sums over template and special tokens too.
        normalize_weights: ReBA divides each sum of weights to 1.
        chunk: For long texts (reba): the text runs once, whole, and ``repeats`` times only its pieces of at most this
            many tokens (see :class:`ChunkedReBAPooling`). A template then has one slot.
        non_finite: ``"error"`` or ``"zeros"``; None: ``"zeros"`` in the published variant, else ``"error"``.
        layers: What each layer sees, with any method: a :class:`LayerPlan` or a mapping of its fields.
        layer: The layer whose hidden states are pooled: a number from 0 (embeddings) to L, or -1 (L) downwards; or
            ``[first, last]`` of several, each of equal norm. Layers above are not run: ``layers`` and ``k`` count from
            the top of those that run, and backward attention is theirs. None: the last.
        join: Several layers' ``"mean"``, or all of them side by side, ``"concat"``, in as many times more dimensions.
        final_norm: Read an inner layer behind the base's final norm, or before it.
        setting: Instead of ``layers``: one of the NoSink paper's settings (see :func:`st_reba.named_plan`).
        k: For ``setting``: converted layers from the top, or ``"all"`` (the default on a sentence-transformers model).
        k0: For ``setting``: the topmost of them that hide the sink.
        m: For ``setting``: number of sink tokens.
        check: Check on a few tokens that every layer obeys its plan.
        prompts: Saved prompts, by name.
        padding_side: Side of the padding; None: the tokenizer's. Vectors do not depend on it.
        postfilter: A linear filter behind all that, fitted on this very model (see :func:`st_reba.fit_postfilter`): its
            file, in a recipe relative to the recipe's folder; or the :class:`PostFilter` itself.
        token: Hub token.
        cache_folder: Where downloads are kept.
        local_files_only: Download nothing.
        model_kwargs: Further keyword arguments of transformers' ``from_pretrained`` (quantization, device_map, …).

    Returns:
        An ordinary SentenceTransformer: RepeatTransformer (or NoSinkTransformer), a pooling (ReBAPooling,
        ChunkedReBAPooling or Pooling), PromptEnsemble where there are several templates, and Normalize.

    Raises:
        ValueError: An unknown name (the message lists what exists), options that exclude each other, or a layer that
            does not obey the plan.
        OSError: The base was not found.

    Source:
        ReBA (reba), Echo (echo, prompteol, compute_matched), NoSink (nosink, setting, layers); see the README's table
        of methods.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", pooling="mean")
        >>> model.encode_query("天气怎么样？").shape
        (192,)
    """
    given = dict(locals())
    if is_recipe(base):
        return build(**with_recipe(given, build))
    if isinstance(postfilter, (str, os.PathLike)):
        # Before the weights, which may take long.
        PostFilter.load(postfilter)
    choose("method", method, METHODS)
    if pooling is not None:
        choose("pooling", pooling, METHODS[method], f" for method={method!r}")
    choose("variant", variant, VARIANTS)
    if not isinstance(normalize, bool):
        raise ValueError(f"normalize={normalize!r} is not known: choose one of [True, False].")
    check_prompts(prompts)
    check_device(device)
    reba, nosink = method == "reba", method == "nosink"
    for name, value in (("include_special", include_special), ("normalize_weights", normalize_weights)):
        if value and not reba:
            raise ValueError(f"{name} belongs to method='reba', not to method={method!r}. Drop it.")
    if variant != "paper" and not reba and not (nosink and setting):
        raise ValueError(
            f"variant={variant!r} belongs to method='reba', or to method='nosink' with a setting, not to "
            f"method={method!r}. Drop it."
        )
    if method == "classical" and separator and template is None:
        raise ValueError(f"separator={separator!r}: method='classical' has one copy, so nothing to separate. Drop it.")
    if reba and span is not None:
        raise ValueError(f"span={span!r} belongs to pooling without backward attention, not to method='reba'. Drop it.")
    if chunk is not None:
        for name, wanted in {"method": "reba", "variant": "paper", "separator": "", "compute_matched": False}.items():
            if given[name] != wanted:
                raise ValueError(f"chunk={chunk!r} needs {name}={wanted!r}, not {given[name]!r}. Drop one of both.")
    if method == "prompteol" and template is None:
        template = "prompteol"
    summed = ensemble_weights(template, weights)
    if summed is None and not equal_norms:
        raise ValueError(f"equal_norms={equal_norms!r} belongs to an ensemble of templates. Drop it.")
    if summed is not None and chunk is not None:
        raise ValueError(f"chunk={chunk!r}: the pieces of a text run in one template, not in {len(summed)}. Drop one.")
    path, name = locate(base)
    plan_variant = variant if nosink else "paper"
    keeps = nosink and pooling is None and is_repository(path, _hub(revision, token, cache_folder, local_files_only))
    if keeps and k is None and setting is not None and not setting.lower().startswith(("baseline", "extend")):
        k = "all"
    plan = _plan(layers, setting, k, k0, m, plan_variant, required=nosink)
    files = {"revision": revision, "token": token, "cache_dir": cache_folder, "local_files_only": local_files_only}
    hub = {**files, "trust_remote_code": trust_remote_code}
    adapted = adapted_model(path, name, files)
    processor_kwargs: dict[str, Any] = {}
    if max_seq_length is not None:
        processor_kwargs["model_max_length"] = length(max_seq_length)
    if padding_side is not None:
        choose("padding_side", padding_side, ("left", "right"))
        processor_kwargs["padding_side"] = padding_side
    loading = {"dtype": weights_dtype(dtype, device), **(model_kwargs or {})}
    if keeps:
        check_kept(given)
        kept = convert_repository(
            path,
            plan,
            check=check,
            base_model=name,
            base_revision=revision,
            device=device,
            prompts=prompts,
            trust_remote_code=trust_remote_code,
            model_kwargs=loading,
            processor_kwargs=processor_kwargs,
            **_hub(revision, token, cache_folder, local_files_only),
        )
        check_loaded(kept[0], path, name, adapted, files)
        return kept if postfilter is None else with_postfilter(kept, postfilter)
    settings: dict[str, Any] = {"layers": plan}
    if nosink and setting is not None:
        settings = {"setting": setting, "k": k, "k0": k0, "m": m, "plan_variant": plan_variant}
    borrowed: dict[str, Any]
    if tokenizer is not None:
        borrowed = {"tokenizer_name_or_path": locate_tokenizer(tokenizer, {**hub, "revision": None})}
    else:
        borrowed = tokenizer_of_adapted(path, adapted, _hub(revision, token, cache_folder, local_files_only))
    try:
        transformer = (NoSinkTransformer if "setting" in settings else RepeatTransformer)(
            path,
            template=template,
            repeats=_copies(method, repeats, template, chunk),
            separator=separator,
            instruction=instruction,
            span=_span(method, pooling) if span is None else span,
            compute_matched=compute_matched,
            prepend=prepend,
            layer=layer,
            join=join,
            final_norm=final_norm,
            non_finite=("zeros" if reba and variant == "published" else "error") if non_finite is None else non_finite,
            base_model=name,
            base_revision=revision,
            model_kwargs={**hub, **loading},
            processor_kwargs={**hub, **processor_kwargs, **({"revision": None} if borrowed else {})},
            config_kwargs=dict(hub),
            **borrowed,
            **settings,
        )
    except (OSError, ValueError) as error:
        if (explained := load_error(error, str(base), adapted)) is None:
            raise
        raise explained from error
    if instruction and "instruction" not in transformer.forward_kwargs:
        raise ValueError(
            f"instruction={instruction!r}: the template has no {{instruction}}. Add it, or drop the option."
        )
    if method in ("classical", "prompteol", "nosink") and transformer.repeats > 1:
        raise ValueError(
            f"template={template!r} has {transformer.repeats} {{text}} slots, but method={method!r} runs the text "
            "once. Use method='echo'."
        )
    if tokenizer is not None:
        check_vocabulary(transformer, name, os.fspath(tokenizer))
    check_loaded(transformer, path, name, adapted, files)
    if "device_map" in (model_kwargs or {}):
        device = str(transformer.model.device)
    else:
        transformer.to(device or get_device_name())
    if check:
        check_plan(transformer)
    plain = hidden_states(transformer)
    check_padding(transformer, name)
    # Some backbones project their last hidden states to another size than their configuration's.
    dimension = plain.shape[-1]
    pooling = pooling or METHODS[method][0]
    modules: list[torch.nn.Module] = [transformer]
    if chunk is not None:
        modules.append(
            ChunkedReBAPooling(dimension, chunk, pooling, repeats, include_special, normalize_weights)  # type: ignore[arg-type]
        )
    elif reba:
        modules.append(ReBAPooling(dimension, pooling, variant, include_special, normalize_weights))  # type: ignore[arg-type]
    else:
        modules.append(Pooling(dimension, _POOLING_MODES[pooling]))
    if summed is not None:
        modules.append(PromptEnsemble(summed, equal_norms))
    if normalize:
        modules.append(Normalize())
    if reba:
        transformer.capture = CaptureSpec("last")
        check_capture(transformer, plain)
    # From here on the pooling says what is captured.
    model = SentenceTransformer(modules=modules, device=device, prompts=prompts, trust_remote_code=trust_remote_code)
    check_length(transformer, modules[1])
    return model if postfilter is None else with_postfilter(model, postfilter)


def _plan(
    layers: LayerPlan | Mapping[str, Any] | None,
    setting: str | None,
    k: int | Literal["all"] | None,
    k0: int | None,
    m: int,
    variant: Any,
    *,
    required: bool,
) -> LayerPlan:
    if layers is not None and setting is not None:
        raise ValueError(f"layers={layers!r} and setting={setting!r} exclude each other. Drop one.")
    if setting is not None:
        return named_plan(setting, k, k0, m, variant)
    for name, value, default in (("k", k, None), ("k0", k0, None), ("m", m, 1)):
        if value != default:
            raise ValueError(f"{name}={value!r} belongs to setting=…: a plan in layers=… has its own. Drop it.")
    if layers is not None:
        return layers if isinstance(layers, LayerPlan) else LayerPlan.from_dict(layers)
    if required:
        raise ValueError(
            f"method='nosink' needs setting=… (one of {list(SETTINGS)}) with k=…, as setting='mask0-bidir', k=2; or a "
            "plan of its own in layers=…."
        )
    return LayerPlan()


def _hub(
    revision: str | None, token: bool | str | None, cache_folder: str | None, local_files_only: bool
) -> dict[str, Any]:
    """Where to find a repository, in sentence-transformers' words."""
    return {
        "revision": revision,
        "token": token,
        "cache_folder": cache_folder,
        "local_files_only": local_files_only,
    }


def _copies(method: str, repeats: int, template: object, chunk: int | None) -> int | None:
    """Number of copies to ask of RepeatTransformer; None: as many as the template has slots."""
    if chunk is not None:
        return 1 if template is None else None
    if template is not None:
        return None if type(repeats) is int and repeats == 2 else repeats
    if method not in ("classical", "nosink"):
        return repeats
    if type(repeats) is not int or repeats not in (1, 2):
        raise ValueError(f"repeats={repeats!r}: method={method!r} runs the text once. Use method='echo' to repeat it.")
    return 1


def _span(method: str, pooling: str | None) -> Literal["last_copy", "end", "all"]:
    if method == "prompteol":
        return "end"
    return "all" if pooling == "cls" else "last_copy"
