"""Fine-tune a decoder as a text embedder, as the Echo paper does: LoRA, in-batch and hard negatives, EOS pooled.

    python examples/train_echo.py mini pairs.tsv my_embedder --dev dev.tsv --method echo --batch-size 64 --steps 200

TRAIN and --dev are files (.csv, .tsv, .jsonl, or .txt with || between columns) or names of Hub datasets, with the
columns query, positive and, where there are hard negatives, negative, negative_2, …; or with two texts and a score or
label, of which the pairs with the highest scores are positives. docs/how-to/train.md says what it costs and what to
expect.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)
from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator, TripletEvaluator
from sentence_transformers.sentence_transformer.losses import (
    CachedMultipleNegativesRankingLoss,
    MultipleNegativesRankingLoss,
)
from transformers import AutoTokenizer, set_seed
from transformers.trainer_utils import get_last_checkpoint

import st_reba
from st_reba.bases import locate
from st_reba.hub import save

# Echo, section 4.4. The end token, whose hidden state is pooled, follows.
TEMPLATES = {
    1: {"query": "Instruct: {instruction}\nQuery: {text}", "document": "Document: {text}"},
    2: {
        "query": "Instruct: {instruction}\nQuery: {text}\nQuery again: {text}",
        "document": "Document: {text}\nDocument again: {text}",
    },
}
METHODS: dict[str, dict[str, Any]] = {
    "classical": {"method": "classical", "template": TEMPLATES[1], "pooled": "end"},
    "bidirectional": {
        "method": "nosink",
        "setting": "inplace-bidir",
        "k": "all",
        "pooling": "last",
        "template": TEMPLATES[1],
        "pooled": "end",
    },
    "echo": {"method": "echo", "template": TEMPLATES[2], "pooled": "end"},
    # Pools by what attention gives to the last word, so no end token is needed.
    "reba": {"method": "reba", "template": TEMPLATES[2]},
}
# The names that files give to the same columns.
COLUMNS = {"anchor": "query", "sentence1": "query", "text1": "query", "sentence2": "positive", "text2": "positive"}
COLUMNS |= {"label": "score", "similarity_score": "score"}


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("base", metavar="BASE", help="the decoder: mini, a folder or a Hub id")
    add("train", metavar="TRAIN", help="what to train on: a file, or a Hub dataset")
    add("out", metavar="OUT", help="folder for the trained model; checkpoints go to OUT-checkpoints")
    data = parser.add_argument_group("data")
    add = data.add_argument
    add("--dev", metavar="FILE", help="what to evaluate on before, during and after: pairs with scores, or triplets")
    add("--train-part", metavar="I/N", default="0/1", help="every N-th row from row I on, 0/2: a half (default: all)")
    add("--dev-part", metavar="I/N", default="0/1", help="likewise (1/2: the other half)")
    add("--positive", type=float, help="the lowest score of a positive pair (default: four fifths of the highest)")
    add("--symmetric", action="store_true", help="positives are laid out as queries; so it is where pairs have scores")
    add("--instruction", default="Retrieve semantically similar text", help="of queries (default: %(default)s)")
    method = parser.add_argument_group("method")
    add = method.add_argument
    add("--method", choices=sorted(METHODS), default="echo", help="the paper's comparison, and ReBA (default: echo)")
    add("--compute-matched", action="store_true", help="half the steps, half the tokens of a text: what Echo doubles")
    add("--max-seq-length", type=int, default=512, help="positions of a sequence, all copies (default: %(default)s)")
    train = parser.add_argument_group("training, as in the paper by default")
    add = train.add_argument
    add("--rank", type=int, default=16, help="LoRA's r (default: %(default)s)")
    add("--alpha", type=int, default=16, help="LoRA's alpha (default: %(default)s)")
    add("--scale", type=float, default=50.0, help="1/tau, by which cosines are multiplied (default: %(default)s)")
    add("--lr", type=float, default=8e-4, help="learning rate (default: %(default)s)")
    add("--batch-size", type=int, default=2048, help="pairs that are each other's negatives (default: %(default)s)")
    add("--mini-batch-size", type=int, default=32, help="pairs in memory at a time, GradCache (default: %(default)s)")
    add("--steps", type=int, default=720, help="(default: %(default)s)")
    add("--warmup", type=float, default=0.1, help="share of the steps in which the rate rises (default: %(default)s)")
    add("--seed", type=int, default=0, help="(default: %(default)s)")
    add("--bf16", action="store_true", help="compute in bfloat16, by autocast")
    add("--gradient-checkpointing", action="store_true", help="less memory, more time")
    add("--save-steps", type=int, default=100, help="steps to a checkpoint and a look at --dev (default: %(default)s)")
    add("--resume", action="store_true", help="go on from the last checkpoint; all else as in the first call")
    add("--merge", action="store_true", help="save whole weights, which need neither peft nor BASE; else the adapter")
    add("--overwrite", action="store_true", help="replace a model that is in OUT")
    return parser


def read(source: str, part: str) -> Dataset:
    """Rows of a file or a Hub dataset, their columns under the names that are used here."""
    suffix = Path(source).suffix.lower()
    if suffix in (".csv", ".tsv"):
        with open(source, encoding="utf-8-sig", newline="") as stream:
            rows = list(csv.DictReader(stream, delimiter="\t" if suffix == ".tsv" else ","))
    elif suffix == ".jsonl":
        with open(source, encoding="utf-8") as stream:
            rows = [json.loads(line) for line in stream if line.strip()]
    elif suffix == ".txt":
        with open(source, encoding="utf-8") as stream:
            fields = [line.rstrip("\n").split("||") for line in stream if line.strip()]
        rows = [dict(zip(("query", "positive", "score"), row[-3:], strict=True)) for row in fields]
    else:
        rows = list(load_dataset(source, split="train"))
    first, step = (int(number) for number in part.split("/")) if re.fullmatch(r"\d+/\d+", part) else (0, 0)
    if first >= step:
        raise SystemExit(f"{part!r} is no part: I/N takes every N-th row from row I on, 0 <= I < N.")
    rows = [{COLUMNS.get(name, name): value for name, value in row.items()} for row in rows[first::step]]
    if not rows or not {"query", "positive"} <= set(rows[0]):
        raise SystemExit(f"{source!r} has the columns {list(rows[0]) if rows else []}: query and positive are needed.")
    texts = ["query", "positive", *sorted(name for name in rows[0] if name.startswith("negative"))]
    scores = {"score": [float(row["score"]) for row in rows]} if "score" in rows[0] else {}
    return Dataset.from_dict({name: [row[name] for row in rows] for name in texts} | scores)


def positives(data: Dataset, lowest: float | None) -> Dataset:
    """The pairs to train on: of pairs with scores those with the highest."""
    if "score" not in data.column_names:
        return data
    lowest = 0.8 * max(data["score"]) if lowest is None else lowest
    return data.filter(lambda row: row["score"] >= lowest).remove_columns("score")


class Similarity(EmbeddingSimilarityEvaluator):
    """Both texts of a pair as queries."""

    def embed_inputs(self, model: Any, sentences: Any, **kwargs: Any) -> Any:
        return model.encode_query(sentences, batch_size=self.batch_size, convert_to_numpy=True)


def evaluator(data: Dataset, name: str) -> Any:
    if "score" in data.column_names:
        return Similarity(data["query"], data["positive"], data["score"], name=name, write_csv=False)
    if "negative" in data.column_names:
        return TripletEvaluator(data["query"], data["positive"], data["negative"], name=name, write_csv=False)
    raise SystemExit("--dev needs pairs with scores, or a column 'negative'.")


def build(options: argparse.Namespace) -> SentenceTransformer:
    """The untrained embedder, and a LoRA adapter in all its linear layers."""
    settings = dict(METHODS[options.method])
    if settings.get("pooled") == "end":
        end = AutoTokenizer.from_pretrained(locate(options.base)[0]).eos_token
        if end is None:
            raise SystemExit(f"The tokenizer of {options.base!r} has no end token to pool. Use --method reba.")
        settings["template"] = {task: text + end for task, text in settings["template"].items()}
    model = st_reba.build(
        options.base,
        instruction=options.instruction,
        max_seq_length=options.max_seq_length,
        dtype="float32",
        **({"compute_matched": True} if options.compute_matched else {}),
        **settings,
    )
    adapter = LoraConfig(
        task_type="FEATURE_EXTRACTION", r=options.rank, lora_alpha=options.alpha, target_modules="all-linear"
    )
    model.add_adapter(adapter)
    return model


def merge(model: Any) -> None:
    """Make the adapter of a transformers model part of its weights, which are then saved without peft."""
    for place, module in list(model.named_modules()):
        if hasattr(module, "get_base_layer"):
            module.merge()
            parent, _, child = place.rpartition(".")
            setattr(model.get_submodule(parent), child, module.get_base_layer())
    # Private in transformers: names as in the adapter, under which the merged weights would be saved.
    vars(model).pop("_weight_conversions", None)
    model._hf_peft_config_loaded = False
    del model.peft_config
    model.requires_grad_(True)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    options = parser().parse_args(arguments)
    if Path(options.out).exists() and not options.overwrite:
        raise SystemExit(f"{options.out!r} exists: name another folder, or give --overwrite.")
    set_seed(options.seed)
    train = read(options.train, options.train_part)
    symmetric = options.symmetric or "score" in train.column_names
    train = positives(train, options.positive)
    batch_size = min(options.batch_size, len(train))
    dev = None if options.dev is None else evaluator(read(options.dev, options.dev_part), "dev")
    model = build(options)
    part = "" if options.train_part == "0/1" else f", part {options.train_part}"
    name = {"name": Path(options.train).name + part}
    model.model_card_data.train_datasets = [name if Path(options.train).exists() else {**name, "id": options.train}]
    tasks = {name: "query" if symmetric or name == "query" else "document" for name in train.column_names}
    steps = max(1, options.steps // 2) if options.compute_matched else options.steps
    checkpointing: dict[str, Any] = {}
    if options.gradient_checkpointing:
        checkpointing = {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": False}}
    settings = SentenceTransformerTrainingArguments(
        output_dir=f"{options.out}-checkpoints",
        max_steps=steps,
        per_device_train_batch_size=batch_size,
        learning_rate=options.lr,
        lr_scheduler_type="linear",
        warmup_steps=int(options.warmup * steps),
        bf16=options.bf16,
        use_cpu=not torch.accelerator.is_available(),
        **checkpointing,
        batch_sampler="no_duplicates",
        router_mapping=tasks,
        eval_strategy="no" if dev is None else "steps",
        eval_steps=options.save_steps,
        save_steps=options.save_steps,
        save_total_limit=2,
        logging_steps=max(1, min(10, steps // 10)),
        seed=options.seed,
        report_to="none",
    )
    if settings.n_gpu > 1:
        raise SystemExit(
            "Several GPUs: start with torchrun --nproc-per-node N, or choose one by CUDA_VISIBLE_DEVICES=0."
        )
    # GradCache runs every text twice, which a batch that fits the memory does not need.
    loss: Any = MultipleNegativesRankingLoss(model, scale=options.scale)
    if batch_size > options.mini_batch_size:
        loss = CachedMultipleNegativesRankingLoss(model, scale=options.scale, mini_batch_size=options.mini_batch_size)
    before = {} if dev is None else dict(dev(model))
    trainer = SentenceTransformerTrainer(model=model, args=settings, train_dataset=train, loss=loss, evaluator=dev)
    last = get_last_checkpoint(settings.output_dir) if options.resume and Path(settings.output_dir).is_dir() else None
    trainer.train(resume_from_checkpoint=last)
    # Else the autocast of --bf16 stays on, and what is saved was computed by it.
    trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    after = {} if dev is None else dict(dev(model))
    history = [entry for entry in trainer.state.log_history if "loss" in entry or "train_runtime" in entry]
    if trainer.is_world_process_zero():
        model.eval()
        if options.merge:
            merge(model[0].model)
        save(model, options.out, overwrite=options.overwrite)
    losses = [entry["loss"] for entry in history if "loss" in entry]
    report = {
        "pairs": len(train),
        "batch": batch_size,
        "steps": steps,
        "loss": [losses[0], losses[-1]] if losses else [],
        "seconds": history[-1].get("train_runtime"),
        "before": before,
        "after": after,
    }
    print(json.dumps(report, ensure_ascii=False))
    return {**report, "losses": losses}


if __name__ == "__main__":
    main()
