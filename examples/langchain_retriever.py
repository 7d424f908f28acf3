"""A LangChain retriever over a FAISS store, with a saved model's own prompts for documents and queries.

    pip install langchain-community langchain-huggingface faiss-cpu
    python examples/langchain_retriever.py
    python examples/langchain_retriever.py --model my_model --texts my_texts.txt --store my_store "What shines?"

MODEL is a saved model's folder or a Hub id; without one the embedded model is built and saved. TEXTS has a text a line.
"""

import argparse
import tempfile
from pathlib import Path

from langchain_community.vectorstores import FAISS
from langchain_huggingface import HuggingFaceEmbeddings

import st_reba  # registers the model's classes; without it, "trust_remote_code": True belongs into model_kwargs

TEXTS = [
    "股票大跌，投资者很担心。",
    "猫在窗台上睡着了。",
    "这家面馆的牛肉面很好吃。",
    "The cat is asleep on the sofa.",
    "Shares fell sharply and investors are worried.",
    "The noodle shop on the corner is always full.",
]


def main() -> None:
    parser = argparse.ArgumentParser(description="Search texts with a LangChain retriever.")
    parser.add_argument("queries", nargs="*", default=["一只正在睡觉的猫", "Who lost money?"])
    parser.add_argument("--model", help="a saved model (default: the embedded one, Echo with prompts)")
    parser.add_argument("--texts", help="a file with a text a line (default: six sentences)")
    parser.add_argument("--store", help="a folder to keep the FAISS store in (default: a temporary one)")
    parser.add_argument("-k", type=int, default=3, help="results a query")
    options = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        name = options.model or f"{folder}/model"
        if not options.model:
            prompts = {"query": "Query: ", "document": "Document: "}
            st_reba.build("mini", "echo", pooling="mean", prompts=prompts).save_pretrained(name)
        texts = TEXTS
        if options.texts:
            lines = Path(options.texts).read_text(encoding="utf-8").splitlines()
            texts = [line.strip() for line in lines if line.strip()]

        # LangChain calls plain encode, which uses no prompt unless one is named. A model without saved prompts has
        # both of these names too, with empty prompts.
        embeddings = HuggingFaceEmbeddings(
            model_name=name,
            encode_kwargs={"prompt_name": "document"},
            query_encode_kwargs={"prompt_name": "query"},
        )
        store = FAISS.from_texts(texts, embeddings)
        place = options.store or f"{folder}/store"
        store.save_local(place)
        # It unpickles: load only what you saved yourself.
        store = FAISS.load_local(place, embeddings, allow_dangerous_deserialization=True)

        retriever = store.as_retriever(search_kwargs={"k": options.k})
        for query in options.queries:
            print(query)
            for rank, document in enumerate(retriever.invoke(query), 1):
                print(f"  {rank}. {document.page_content}")


if __name__ == "__main__":
    main()
