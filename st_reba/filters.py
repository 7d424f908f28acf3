"""Models with a filter after the pooling."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Normalize

from .encode import Role, encode_texts, list_of_texts, transformer_of
from .filter_options import MIN_FOR_MEAN, FilterOptions, Kind
from .linear_filter import Filter as Filter
from .methods import Options, Template
from .modules import RepeatTransformer, TokenPart
from .modules.extensions import extensions
from .modules.layout import SIMILARITY, TASKS
from .sentences import QUERY_SAMPLE, sample_sentences
from .token_means import fit_token_part


def fit_filter(
    model: SentenceTransformer,
    texts: Iterable[str],
    kind: Kind = "abtt",
    *,
    r: int | None = None,
    dimensions: int | None = None,
    power: float | None = None,
    queries: bool = False,
    tokens: bool = False,
    **encoding: Any,
) -> SentenceTransformer:
    """Fit a linear filter of sentence vectors (not of words) on unlabelled texts, and append it to a model.

    A model has one filter, for vectors of one kind. If its template has wordings for queries, for
    documents and for the texts of ``encode``, the filtered model keeps only those that the filter
    was fitted for: with ``queries`` the first two, so that ``encode`` is the same as
    ``encode_document``; otherwise the third. With ``queries``, encode queries only with
    ``encode_query``: ``encode`` treats every text as a document, even with a query's prompt or
    fields.

    Args:
        model: A model from :func:`st_reba.build`, or one loaded; not changed.
        texts: Texts like those to be embedded, without labels. Blank and repeated ones are left
            out.
        kind, r, dimensions, power: See :class:`Filter`. For search: ``kind="whiten", power=0.25,
            queries=True, tokens=True``.
        queries: The texts are documents, and queries have a mean of their own: that of up to 200
            sentences of the documents, which are encoded as queries.
        tokens: Append up to 256 dimensions made from a text's own tokens, weighted by rarity: they
            find names and numbers, which the model's summary in one word leaves out. Needs
            ``kind="whiten"`` and ``queries``. See :class:`st_reba.TokenPart`.
        **encoding: As for :func:`st_reba.encode.encode_texts`: ``task``, ``prompt``,
            ``batch_tokens``, and the fields of the template. With ``queries``, no ``task`` and no
            ``prompt``: each task has its own.

    Returns:
        A new model that shares the weights and the tokenizer of ``model`` (so ``max_seq_length`` is
        one for both). After the modules of ``model`` come sentence-transformers' own ``Dense``, in
        front of it a :class:`st_reba.QueryShift` if ``queries``, and after it a ``Normalize`` if
        ``model`` ended with one, and a :class:`st_reba.TokenPart` if ``tokens``.

    Raises:
        ValueError: An option of another kind, too few texts, a direction in which they (nearly) do
            not vary, or a model that is not ours or has a filter already.

    Example:
        >>> import st_reba
        >>> model = st_reba.build("mini", "echo", pooling="mean")
        >>> texts = [f"{name} sells {number} books." for name in ("Ann", "王芳", "Tom", "Li") for number in range(27)]
        >>> [type(module).__name__ for module in st_reba.fit_filter(model, texts, "center")]
        ['RepeatTransformer', 'Pooling', 'Normalize', 'Dense', 'Normalize']
        >>> search_model = st_reba.fit_filter(model, texts, "whiten", power=0.25, queries=True)
        >>> [type(module).__name__ for module in search_model][2:]
        ['Normalize', 'QueryShift', 'Dense', 'Normalize']
    """
    unfiltered_model = _unfiltered_copy(model)
    for name in sorted({"normalize_embeddings", "truncate_dim"} & encoding.keys()):
        raise ValueError(
            f"{name}={encoding[name]!r}: the filter gets the vectors as the model's modules give them. Drop it."
        )
    if tokens:
        _check_tokens(model, kind, queries=queries)
    distinct_texts = _distinct_texts(texts)
    # Checked before the work of encoding.
    vector_width = int(unfiltered_model.get_embedding_dimension() or 0)
    FilterOptions.make(kind, r, dimensions, power, len(distinct_texts), vector_width)
    query_sentences: list[str] = []
    query_vectors = None
    if queries:
        query_sentences = _sentences_for_queries(distinct_texts)
        query_vectors = _encode_as(unfiltered_model, query_sentences, "query", encoding)
        document_vectors = _encode_as(unfiltered_model, distinct_texts, "document", encoding)
    else:
        _check_task(unfiltered_model, encoding)
        document_vectors = encode_texts(unfiltered_model, distinct_texts, **encoding)
    fitted_filter = Filter.fit(
        document_vectors,
        kind,
        r=r,
        dimensions=dimensions,
        power=power,
        query_vectors=query_vectors,
    )
    token_part = None
    if tokens:
        token_part = fit_token_part(
            unfiltered_model, distinct_texts, query_sentences, len(fitted_filter.weight)
        )
    return with_filter(model, fitted_filter, token_part)


def with_filter(
    model: SentenceTransformer,
    fitted_filter: Filter,
    token_part: TokenPart | None = None,
) -> SentenceTransformer:
    """Append a filter to the model that it was fitted for; a ValueError for any other model.

    Args:
        model: The model; not changed.
        fitted_filter: The filter.
        token_part: Appends dimensions to the filtered vectors; a part of no other model. None: none.
    """
    filtered_model = _unfiltered_copy(model)
    filter_width = fitted_filter.mean.size
    vector_width = filtered_model.get_embedding_dimension()
    if vector_width not in (None, filter_width):
        raise ValueError(
            f"The filter takes {filter_width} dimensions, but the model gives {vector_width}. Fit another."
        )
    if fitted_filter.probe is not None:
        fitted_filter.probe.check_same(filtered_model, "the filter")
    transformer = copy.copy(transformer_of(filtered_model))
    _keep_fitted_templates(transformer, fitted_filter)
    # sentence-transformers gives all modules the first one's dtype.
    dtype = model.dtype or torch.float32
    description = fitted_filter.description
    if token_part is not None:
        description += f",tokens={token_part.dimensions}"
        token_part.to(dtype)
    transformer.recipe = {**(transformer.recipe or {}), "filter": description}
    modules = [transformer, *list(filtered_model)[1:]]
    normalize = Normalize() if isinstance(modules[-1], Normalize) else None
    query_shift, dense = fitted_filter.query_shift(dtype), fitted_filter.dense(dtype)
    for module in (query_shift, dense, normalize, token_part):
        if module is not None:
            modules.append(module.to(model.device))
    filtered_model._modules = {str(number): module for number, module in enumerate(modules)}
    # So that the code of all these modules travels with it, and they find one another.
    transformer.on_model_ready(filtered_model)
    if token_part is not None:
        token_part.on_model_ready(filtered_model)
    filtered_model.truncate_dim = model.truncate_dim
    filtered_model.prompts = dict(model.prompts)
    filtered_model.model_card_data = copy.copy(model.model_card_data)
    filtered_model.model_card_data.register_model(filtered_model)
    return filtered_model


def _keep_fitted_templates(transformer: RepeatTransformer, fitted_filter: Filter) -> None:
    """Drop the wordings that the filter was not fitted for, where a template has three."""
    if SIMILARITY not in transformer.templates[0]:
        return
    if fitted_filter.query_mean is None:
        source_of_task = dict.fromkeys(TASKS, SIMILARITY)
    else:
        source_of_task = {task: task for task in TASKS}
    assert transformer.template is not None  # the bare text has one wording
    transformer.template = _select_wordings(transformer.template, source_of_task)
    transformer.templates = extensions.parse_templates(transformer.template)


def _select_wordings(
    template: Template,
    source_of_task: Mapping[str, str],
) -> Template:
    """A template, as RepeatTransformer takes it, with each task's wording taken from its source."""
    if isinstance(template, str):
        return template
    if isinstance(template, Mapping):
        selected_wordings: dict[str, str] = {}
        for task, source in source_of_task.items():
            selected_wordings[task] = template.get(source, template["document"])
        return selected_wordings
    selected_templates: list[Any] = []
    for listed_template in template:
        selected_templates.append(_select_wordings(listed_template, source_of_task))
    return selected_templates


def _check_tokens(model: SentenceTransformer, kind: Kind, *, queries: bool) -> None:
    if kind != "whiten" or not queries:
        raise ValueError(
            "tokens=True is for search: give kind='whiten' and queries=True with it, or leave it out."
        )
    if transformer_of(model).own_input:
        raise ValueError("tokens=True: the model keeps the base's own input. Leave it out.")
    if model.truncate_dim is not None:
        raise ValueError(
            f"tokens=True: truncate_dim={model.truncate_dim} would cut them off. Load the model without it."
        )


def _sentences_for_queries(texts: Sequence[str]) -> list[str]:
    query_sentences = sample_sentences(texts, QUERY_SAMPLE)
    if len(query_sentences) < MIN_FOR_MEAN:
        raise ValueError(
            f"queries=True: texts hold {len(query_sentences)} different sentences, too few to stand for queries. "
            "Give other texts, or queries=False."
        )
    return query_sentences


def _check_task(model: SentenceTransformer, encoding: Options) -> None:
    task = encoding.get("task")
    if task is not None and SIMILARITY in transformer_of(model).templates[0]:
        raise ValueError(
            f"task={task!r}: the template has wordings for three uses. Give queries=True for search, "
            "or drop task for what encode takes."
        )


def _distinct_texts(texts: Iterable[str]) -> list[str]:
    filled_texts = [text for text in list_of_texts(texts) if text.strip()]
    return list(dict.fromkeys(filled_texts))


def _encode_as(
    model: SentenceTransformer,
    texts: Sequence[str],
    task: Role,
    encoding: Options,
) -> NDArray[np.float32]:
    """Vectors [N, d] of texts encoded as queries or documents, with the fields of that template."""
    refused_names = {"task", "prompt", "prompt_name"} & encoding.keys()
    if refused_names:
        name = min(refused_names)
        raise ValueError(
            f"{name}={encoding[name]!r} does not go with queries=True, which encodes as both. Drop it."
        )
    transformer = transformer_of(model)
    other_fields = transformer.forward_kwargs - transformer.fields(task)
    task_options = {name: value for name, value in encoding.items() if name not in other_fields}
    return encode_texts(model, texts, task=task, **task_options)


def _unfiltered_copy(model: SentenceTransformer) -> SentenceTransformer:
    """A copy without ``truncate_dim``, as a filter stands before the cut; a model that has a filter is refused."""
    recipe = transformer_of(model).recipe or {}
    if "filter" in recipe:
        raise ValueError(
            f"The model has a filter already ({recipe['filter']}). Fit on the model without it."
        )
    whole_model = copy.copy(model)
    whole_model.truncate_dim = None
    return whole_model
