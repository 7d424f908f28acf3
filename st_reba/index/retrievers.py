"""Retrievers of other frameworks over an index that is there; each framework is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from .where import Where

if TYPE_CHECKING:
    from .index import Index, SearchResult

# Haystack's comparisons, which are also those of `where`.
_COMPARED = ("==", "!=", ">", ">=", "<", "<=", "in")


def langchain(index: Index, k: int = 10, where: Where | None = None) -> Any:
    """A LangChain retriever over an index.

    Args:
        index: The index, opened with its model or where it can find it.
        k: How many documents to return.
        where: Conditions on the metadata, as for ``Index.search``.

    Returns:
        A ``langchain_core.retrievers.BaseRetriever``. Of each document, ``page_content`` is the text, or the passage
        that was found where the index cuts texts, and ``metadata`` holds the document's and "score".

    Raises:
        ImportError: langchain-core is not installed.

    Example:
        >>> import st_reba
        >>> index = st_reba.Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index")
        >>> langchain(index, k=1).invoke("Cats sleep.")[0].page_content  # doctest: +SKIP
        'Cats sleep.'
    """
    base = _imported("langchain_core.retrievers", "langchain-core").BaseRetriever
    document = _imported("langchain_core.documents", "langchain-core").Document

    class IndexRetriever(base):  # type: ignore[misc, valid-type]
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Any]:
            return [
                document(id=one.id, page_content=_content(one), metadata={**one.metadata, "score": one.score})
                for one in index.search(query, k, where=where)
            ]

    return IndexRetriever()


def llama_index(index: Index, k: int = 10, where: Where | None = None) -> Any:
    """A LlamaIndex retriever over an index.

    Args:
        index, k, where: As for `langchain`.

    Returns:
        A ``llama_index.core.retrievers.BaseRetriever``. Of each ``NodeWithScore``, the node's id and source are the id
        of the document, its text as for `langchain`.

    Raises:
        ImportError: llama-index-core is not installed.

    Example:
        >>> import st_reba
        >>> index = st_reba.Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index")
        >>> llama_index(index, k=1).retrieve("Cats sleep.")[0].text  # doctest: +SKIP
        'Cats sleep.'
    """
    base = _imported("llama_index.core.retrievers", "llama-index-core").BaseRetriever
    schema = _imported("llama_index.core.schema", "llama-index-core")

    class IndexRetriever(base):  # type: ignore[misc, valid-type]
        def _retrieve(self, query_bundle: Any) -> list[Any]:
            return [self._node(one) for one in index.search(query_bundle.query_str, k, where=where)]

        def _node(self, one: SearchResult) -> Any:
            # Without a source, LlamaIndex keeps only one of several nodes with the same text and metadata.
            source = {schema.NodeRelationship.SOURCE: schema.RelatedNodeInfo(node_id=one.id)}
            node = schema.TextNode(id_=one.id, text=_content(one), metadata=one.metadata, relationships=source)
            return schema.NodeWithScore(node=node, score=one.score)

    return IndexRetriever()


def haystack(index: Index, k: int = 10, where: Where | None = None) -> Any:
    """A Haystack component over an index, which takes the place of an embedder and a retriever in a pipeline.

    Args:
        index, k, where: As for `langchain`.

    Returns:
        A component with ``run(query, top_k=None, filters=None)``, which gives ``{"documents": [...]}``; the content of
        each is as for `langchain`. ``top_k`` takes the place of k. ``filters`` are Haystack's: a comparison (==, !=,
        >, >=, <, <=, in) or an AND of some; they must hold besides ``where``. A pipeline with it cannot be saved.

    Raises:
        ImportError: haystack-ai is not installed.

    Example:
        >>> import st_reba
        >>> index = st_reba.Index.build(st_reba.build("mini"), ["Cats sleep.", "Ships sail."], "my_index")
        >>> haystack(index).run("Cats sleep.", top_k=1)["documents"][0].content  # doctest: +SKIP
        'Cats sleep.'
    """
    framework = _imported("haystack", "haystack-ai")

    class IndexRetriever:
        def __init__(self) -> None:
            framework.component.set_output_types(self, documents=list[framework.Document])  # type: ignore[name-defined]

        def run(
            self, query: str, top_k: int | None = None, filters: dict[str, Any] | None = None
        ) -> dict[str, list[Any]]:
            found = index.search(query, k if top_k is None else top_k, where=_conditions(where, filters))
            return {
                "documents": [
                    framework.Document(id=one.id, content=_content(one), meta=one.metadata, score=one.score)
                    for one in found
                ]
            }

    return framework.component(IndexRetriever)()


def _imported(module: str, package: str) -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(
            f"this needs {package}, which could not be imported ({error}). Run: pip install {package}"
        ) from error


def _content(result: SearchResult) -> str:
    return result.text if result.passage is None else result.passage


def _conditions(where: Where | None, filters: Mapping[str, Any] | None) -> Where | None:
    """Conditions of a search, and Haystack's filters, which must all hold.

    Example:
        >>> _conditions({"year": 2020}, {"field": "meta.lang", "operator": "==", "value": "zh"})
        {'year': {'=': 2020}, 'lang': {'==': 'zh'}}
    """
    found = {name: dict(one) if isinstance(one, Mapping) else {"=": one} for name, one in (where or {}).items()}
    left = [filters] if filters else []
    while left:
        one = left.pop()
        if one.get("operator") == "AND":
            left += one["conditions"]
        elif one.get("operator") in _COMPARED and "field" in one:
            there = found.setdefault(str(one["field"]).removeprefix("meta."), {})
            if there.setdefault(one["operator"], one["value"]) != one["value"]:
                raise ValueError(f"filters: {one['field']!r} is compared by {one['operator']!r} twice; leave one out")
        else:
            known = ", ".join(_COMPARED)
            raise ValueError(f"filters: {one!r} is not known; give a comparison by one of {known}, or an AND of some")
    return found or None
