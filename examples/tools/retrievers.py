"""Search an index of st-reba from LangChain, LlamaIndex and Haystack: retrievers.py my_index "my query"."""

import sys
from typing import Any

import st_reba


def langchain(index: st_reba.Index, k: int = 10) -> Any:
    """A LangChain retriever."""
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever

    class IndexRetriever(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            return [
                Document(id=one.id, page_content=one.passage or one.text, metadata={**one.metadata, "score": one.score})
                for one in index.search(query, k)
            ]

    return IndexRetriever()


def llama_index(index: st_reba.Index, k: int = 10) -> Any:
    """A LlamaIndex retriever."""
    from llama_index.core import schema
    from llama_index.core.retrievers import BaseRetriever

    class IndexRetriever(BaseRetriever):
        def _retrieve(self, query_bundle: Any) -> list[Any]:
            return [self._node(one) for one in index.search(query_bundle.query_str, k)]

        def _node(self, one: Any) -> Any:
            # Without a source, LlamaIndex keeps only one of several nodes with the same text and metadata.
            source = {schema.NodeRelationship.SOURCE: schema.RelatedNodeInfo(node_id=one.id)}
            text = one.passage or one.text
            node = schema.TextNode(id_=one.id, text=text, metadata=one.metadata, relationships=source)
            return schema.NodeWithScore(node=node, score=one.score)

    return IndexRetriever()


def haystack(index: st_reba.Index, k: int = 10) -> Any:
    """A Haystack component, in place of an embedder and a retriever."""
    from haystack import Document, component

    @component
    class IndexRetriever:
        @component.output_types(documents=list[Document])
        def run(self, query: str) -> dict[str, list[Document]]:
            found = index.search(query, k)
            return {
                "documents": [
                    Document(id=one.id, content=one.passage or one.text, meta=one.metadata, score=one.score)
                    for one in found
                ]
            }

    return IndexRetriever()


if __name__ == "__main__":
    for document in langchain(st_reba.Index.open(sys.argv[1])).invoke(sys.argv[2]):
        print(f"{document.metadata['score']:.4f}  {document.page_content}")
