r"""Index a folder of texts, retrieve and answer with one language model: the same weights embed and write.

    python examples/rag_one_model.py "Where is the bridge?" \
        --llm HuggingFaceTB/SmolLM2-135M-Instruct --folder notes

The folder holds .txt or .md files, whose paragraphs are indexed; without a folder, six sentences
are. Texts are found by their words and by their vectors together. LLM is a folder or Hub id of a
chat model.
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


def read_paragraphs(folder: Path) -> list[str]:
    paragraphs: list[str] = []
    for file in sorted(folder.rglob("*")):
        if file.suffix in (".txt", ".md"):
            blocks = file.read_text(encoding="utf-8").split("\n\n")
            paragraphs += filter(None, map(str.strip, blocks))
    return paragraphs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("question", nargs="?", default="When was the bridge built?")
    parser.add_argument("--folder", type=Path, help="texts to search (default: six sentences)")
    parser.add_argument("--llm", required=True, help="folder or Hub id of a chat model")
    parser.add_argument("-k", type=int, default=2, help="how many passages to answer from")
    options = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(options.llm)
    chat_model = AutoModelForCausalLM.from_pretrained(options.llm, dtype=torch.float32)
    # The embedder shares the weights: no second model in memory, and writing works as before.
    embedder = st_reba.build(chat_model, tokenizer=tokenizer)

    texts = TEXTS if options.folder is None else read_paragraphs(options.folder)
    with (
        tempfile.TemporaryDirectory() as temporary_folder,
        st_reba.Index.build(embedder, texts, f"{temporary_folder}/index") as index,
    ):
        results = index.search(options.question, options.k)
    for result in results:
        print(f"{result.score:.3f}  {result.text}")

    context = "\n".join(result.text for result in results)
    request = f"{context}\n\nAnswer in one sentence, from the text above: {options.question}"
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": request}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    ).to(chat_model.device)
    prompt_length = prompt["input_ids"].shape[1]
    written_ids = chat_model.generate(**prompt, max_new_tokens=60, do_sample=False)
    print(tokenizer.decode(written_ids[0, prompt_length:], skip_special_tokens=True))


if __name__ == "__main__":
    main()
