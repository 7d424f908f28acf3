"""Search an index of st-reba from LangChain, LlamaIndex and Haystack: retrievers.py my_index "my query"."""

import sys
from typing import Any

import st_reba


def langchain(index: st_reba.Index, result_count: int = 10) -> Any:
    """A LangChain retriever."""
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever

    class IndexRetriever(BaseRetriever):
        def _get_relevant_documents(self, query: str, *, run_manager: Any) -> list[Document]:
            documents: list[Document] = []
            for result in index.search(query, result_count):
                text = result.passage or result.text
                metadata = result.metadata | {"score": result.score}
                documents.append(Document(id=result.id, page_content=text, metadata=metadata))
            return documents

    return IndexRetriever()


def llama_index(index: st_reba.Index, result_count: int = 10) -> Any:
    """A LlamaIndex retriever."""
    from llama_index.core import schema
    from llama_index.core.retrievers import BaseRetriever

    class IndexRetriever(BaseRetriever):
        def _retrieve(self, query_bundle: Any) -> list[Any]:
            results = index.search(query_bundle.query_str, result_count)
            return list(map(self._scored_node, results))

        def _scored_node(self, result: Any) -> Any:
            # Without a source, LlamaIndex keeps only one of several nodes with the same text and
            # metadata.
            source = schema.RelatedNodeInfo(node_id=result.id)
            node = schema.TextNode(
                id_=result.id,
                text=result.passage or result.text,
                metadata=result.metadata,
                relationships={schema.NodeRelationship.SOURCE: source},
            )
            return schema.NodeWithScore(node=node, score=result.score)

    return IndexRetriever()


def haystack(index: st_reba.Index, result_count: int = 10) -> Any:
    """A Haystack component, in place of an embedder and a retriever."""
    from haystack import Document, component

    @component
    class IndexRetriever:
        @component.output_types(documents=list[Document])
        def run(self, query: str) -> dict[str, list[Document]]:
            documents: list[Document] = []
            for result in index.search(query, result_count):
                document = Document(
                    id=result.id,
                    content=result.passage or result.text,
                    meta=result.metadata,
                    score=result.score,
                )
                documents.append(document)
            return {"documents": documents}

    return IndexRetriever()


if __name__ == "__main__":
    index_folder, query = sys.argv[1:]
    retriever = langchain(st_reba.Index.open(index_folder))
    for document in retriever.invoke(query):
        print(f"{document.metadata['score']:.4f}  {document.page_content}")
