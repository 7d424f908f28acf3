"""Index a folder of texts, retrieve and answer with one language model: the same weights embed and write.

    python examples/rag_one_model.py "Where is the bridge?" --llm HuggingFaceTB/SmolLM2-135M-Instruct --folder notes

The folder holds .txt or .md files, whose paragraphs are indexed; without one, six sentences are. Texts are found by
their words and by their vectors together. LLM is a folder or Hub id of a chat model.
"""

import argparse
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import st_reba

TEXTS = [
    "The stone bridge over the Ilm was built in 1786 and carries the road to the mill.",
    "The mill ground rye until 1923; today it is a museum of the village.",
    "Every spring the school cleans the banks of the river.",
    "The bakery opens at six and sells rolls with poppy seeds.",
    "A bus to the town leaves from the church at ten past each hour.",
    "The library lends books for four weeks, and films for one.",
]


def paragraphs(folder: Path) -> list[str]:
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".txt", ".md"))
    parts = (part.strip() for path in files for part in path.read_text(encoding="utf-8").split("\n\n"))
    return [part for part in parts if part]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="When was the bridge built?")
    parser.add_argument("--folder", type=Path, help="texts to search (default: six sentences)")
    parser.add_argument("--llm", required=True, help="folder or Hub id of a chat model")
    parser.add_argument("-k", type=int, default=2, help="passages that the answer is taken from")
    options = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(options.llm)
    llm = AutoModelForCausalLM.from_pretrained(options.llm, dtype=torch.float32)
    # The embedder shares the weights: no second model is in memory, and writing goes on as before.
    embedder = st_reba.build(llm, tokenizer=tokenizer)

    texts = TEXTS if options.folder is None else paragraphs(options.folder)
    with tempfile.TemporaryDirectory() as scratch, st_reba.Index.build(embedder, texts, f"{scratch}/index") as index:
        results = index.search(options.question, options.k)
    for result in results:
        print(f"{result.score:.3f}  {result.text}")

    context = "\n".join(result.text for result in results)
    request = f"{context}\n\nAnswer in one sentence, from the text above: {options.question}"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": request}], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    written = llm.generate(**prompt.to(llm.device), max_new_tokens=60, do_sample=False)
    print(tokenizer.decode(written[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True))


if __name__ == "__main__":
    main()
