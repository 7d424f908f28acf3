r"""Fine-tune a decoder as a text embedder, as the Echo paper does: LoRA, in-batch and hard negatives, EOS pooled.

    python examples/train_echo.py mini pairs.tsv my_embedder --dev dev.tsv --method echo \
        --batch-size 64 --steps 200

TRAIN and --dev are files (.csv, .tsv, .jsonl, or .txt with || between columns) or names of Hub
datasets, with the columns query, positive and, where there are hard negatives, negative,
negative_2, …; or with two texts and a score or label: then the pairs with the highest scores are
positives. docs/how-to/train.md says what it costs and what to expect.
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
from sentence_transformers.sentence_transformer.evaluation import (
    EmbeddingSimilarityEvaluator,
    TripletEvaluator,
)
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
    # Pools by the attention that the last word receives, so no end token is needed.
    "reba": {"method": "reba", "template": TEMPLATES[2]},
}
# The names that files give to the same columns.
COLUMNS = {
    "anchor": "query",
    "sentence1": "query",
    "text1": "query",
    "sentence2": "positive",
    "text2": "positive",
    "label": "score",
    "similarity_score": "score",
}
ALL_ROWS = "0/1"


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("base", metavar="BASE", help="the decoder: mini, a folder or a Hub id")
    parser.add_argument("train", metavar="TRAIN", help="what to train on: a file, or a Hub dataset")
    parser.add_argument(
        "out",
        metavar="OUT",
        help="folder for the trained model; checkpoints go to OUT-checkpoints",
    )
    add_data_options(parser)
    add_method_options(parser)
    add_training_options(parser)
    return parser


def add_data_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("data").add_argument
    add(
        "--dev",
        metavar="FILE",
        help="what to evaluate on before, during and after: pairs with scores, or triplets",
    )
    add(
        "--train-part",
        metavar="I/N",
        default=ALL_ROWS,
        help="every N-th row from row I on, 0/2: a half (default: all)",
    )
    add("--dev-part", metavar="I/N", default=ALL_ROWS, help="likewise (1/2: the other half)")
    add(
        "--positive",
        type=float,
        help="the lowest score of a positive pair (default: four fifths of the highest)",
    )
    add(
        "--symmetric",
        action="store_true",
        help="format positives as queries (always so if pairs have scores)",
    )
    add(
        "--instruction",
        default="Retrieve semantically similar text",
        help="of queries (default: %(default)s)",
    )


def add_method_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("method").add_argument
    add(
        "--method",
        choices=sorted(METHODS),
        default="echo",
        help="the paper's comparison, and ReBA (default: echo)",
    )
    add(
        "--compute-matched",
        action="store_true",
        help="half the steps, and half the tokens of a text, since Echo doubles them",
    )
    add(
        "--max-seq-length",
        type=int,
        default=512,
        help="positions of a sequence, all copies (default: %(default)s)",
    )


def add_training_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("training, as in the paper by default").add_argument
    numbers = {
        "--rank": (16, "LoRA's r"),
        "--alpha": (16, "LoRA's alpha"),
        "--scale": (50.0, "1/tau, by which cosines are multiplied"),
        "--lr": (8e-4, "learning rate"),
        "--batch-size": (2048, "pairs that are each other's negatives"),
        "--mini-batch-size": (32, "pairs in memory at a time, GradCache"),
        "--steps": (720, "steps of the optimizer"),
        "--warmup": (0.1, "share of the steps in which the rate rises"),
        "--seed": (0, "seed of all random draws"),
        "--save-steps": (100, "steps between checkpoints, with a look at --dev"),
    }
    for option_name, (default_value, description) in numbers.items():
        add(
            option_name,
            type=type(default_value),
            default=default_value,
            help=f"{description} (default: %(default)s)",
        )
    flags = {
        "--bf16": "compute in bfloat16, by autocast",
        "--gradient-checkpointing": "less memory, more time",
        "--resume": "resume from the last checkpoint; give all other options as in the first call",
        "--merge": "save whole weights, which need neither peft nor BASE; else the adapter",
        "--overwrite": "replace a model that is in OUT",
    }
    for option_name, description in flags.items():
        add(option_name, action="store_true", help=description)


Row = dict[str, Any]


def read_file(source: str) -> list[Row]:
    """Rows of a file, or of a Hub dataset."""
    suffix = Path(source).suffix.lower()
    if suffix not in (".csv", ".tsv", ".jsonl", ".txt"):
        return list(load_dataset(source, split="train"))
    with open(source, encoding="utf-8-sig", newline="") as stream:
        if suffix in (".csv", ".tsv"):
            return list(csv.DictReader(stream, delimiter="\t" if suffix == ".tsv" else ","))
        lines = [line.rstrip("\r\n") for line in stream if line.strip()]
    if suffix == ".jsonl":
        return list(map(json.loads, lines))
    rows: list[Row] = []
    for line in lines:
        query, positive, score = line.split("||")[-3:]
        rows.append({"query": query, "positive": positive, "score": score})
    return rows


def take_part(rows: list[Row], part_text: str) -> list[Row]:
    """Every N-th row from row I on, of a part "I/N"."""
    match = re.fullmatch(r"(\d+)/(\d+)", part_text)
    first_row, step = map(int, match.groups()) if match else (0, 0)
    if first_row >= step:
        message = "I/N takes every N-th row from row I on, 0 <= I < N."
        raise SystemExit(f"{part_text!r} is not a part: {message}")
    return rows[first_row::step]


def read_data(source: str, part_text: str) -> Dataset:
    """A part of a file or a Hub dataset, its columns under the names that are used here."""
    rows: list[Row] = []
    for row in take_part(read_file(source), part_text):
        rows.append(
            {COLUMNS.get(column_name, column_name): value for column_name, value in row.items()}
        )
    column_names = list(rows[0]) if rows else []
    if not {"query", "positive"} <= set(column_names):
        message = "query and positive are needed."
        raise SystemExit(f"{source!r} has the columns {column_names}: {message}")
    negative_names = sorted(
        column_name for column_name in column_names if column_name.startswith("negative")
    )
    columns: dict[str, list[Any]] = {}
    for column_name in ("query", "positive", *negative_names):
        columns[column_name] = [row[column_name] for row in rows]
    if "score" in column_names:
        columns["score"] = [float(row["score"]) for row in rows]
    return Dataset.from_dict(columns)


def select_positives(data: Dataset, min_score: float | None) -> Dataset:
    """The pairs to train on; of pairs with scores, those with the highest."""
    if "score" not in data.column_names:
        return data
    if min_score is None:
        min_score = 0.8 * max(data["score"])
    return data.filter(lambda row: row["score"] >= min_score).remove_columns("score")


class QuerySimilarityEvaluator(EmbeddingSimilarityEvaluator):
    """Takes both texts of a pair as queries."""

    def embed_inputs(self, model: Any, sentences: Any, **kwargs: Any) -> Any:
        return model.encode_query(sentences, batch_size=self.batch_size, convert_to_numpy=True)


def make_evaluator(data: Dataset, name: str) -> Any:
    if "score" in data.column_names:
        return QuerySimilarityEvaluator(
            data["query"], data["positive"], data["score"], name=name, write_csv=False
        )
    if "negative" in data.column_names:
        return TripletEvaluator(
            data["query"], data["positive"], data["negative"], name=name, write_csv=False
        )
    raise SystemExit("--dev needs pairs with scores, or a column 'negative'.")


def build_embedder(options: argparse.Namespace) -> SentenceTransformer:
    """The untrained embedder, and a LoRA adapter in all its linear layers."""
    method_options = dict(METHODS[options.method])
    if method_options.get("pooled") == "end":
        try:
            tokenizer = AutoTokenizer.from_pretrained(locate(options.base)[0])
        except (OSError, ValueError) as error:
            raise SystemExit(
                f"{options.base!r} has no tokenizer of transformers: {error}"
            ) from error
        if tokenizer.eos_token is None:
            problem = f"The tokenizer of {options.base!r} has no end token to pool."
            raise SystemExit(f"{problem} Use --method reba.")
        templates = method_options["template"]
        method_options["template"] = {
            task: template + tokenizer.eos_token for task, template in templates.items()
        }
    if options.compute_matched:
        method_options["compute_matched"] = True
    model = st_reba.build(
        options.base,
        instruction=options.instruction,
        max_seq_length=options.max_seq_length,
        dtype="float32",
        **method_options,
    )
    adapter = LoraConfig(
        task_type="FEATURE_EXTRACTION",
        r=options.rank,
        lora_alpha=options.alpha,
        target_modules="all-linear",
    )
    if not model[0].is_base_stored:
        problem = "is converted or merged as it is loaded, so an adapter would not find it again"
        raise SystemExit(f"{options.base!r} {problem}. Give a model that transformers loads.")
    model.add_adapter(adapter)
    return model


def merge_adapter(model: Any) -> None:
    """Make the adapter of a transformers model part of its weights, which are then saved without peft."""
    for module_name, module in list(model.named_modules()):
        if hasattr(module, "get_base_layer"):
            module.merge()
            parent_name, _, child_name = module_name.rpartition(".")
            setattr(model.get_submodule(parent_name), child_name, module.get_base_layer())
    # Private in transformers: names as in the adapter, under which the merged weights would be
    # saved.
    vars(model).pop("_weight_conversions", None)
    model._hf_peft_config_loaded = False
    del model.peft_config
    model.requires_grad_(True)


def training_arguments(
    options: argparse.Namespace,
    tasks: dict[str, str],
    batch_size: int,
) -> SentenceTransformerTrainingArguments:
    step_count = options.steps
    if options.compute_matched:
        step_count = max(1, step_count // 2)
    checkpointing: dict[str, Any] = {}
    if options.gradient_checkpointing:
        checkpointing["gradient_checkpointing"] = True
        checkpointing["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    arguments = SentenceTransformerTrainingArguments(
        output_dir=f"{options.out}-checkpoints",
        max_steps=step_count,
        per_device_train_batch_size=batch_size,
        learning_rate=options.lr,
        lr_scheduler_type="linear",
        warmup_steps=int(options.warmup * step_count),
        bf16=options.bf16,
        use_cpu=not torch.accelerator.is_available(),
        **checkpointing,
        batch_sampler="no_duplicates",
        router_mapping=tasks,
        eval_strategy="no" if options.dev is None else "steps",
        eval_steps=options.save_steps,
        save_steps=options.save_steps,
        save_total_limit=2,
        logging_steps=max(1, min(10, step_count // 10)),
        seed=options.seed,
        report_to="none",
    )
    if arguments.n_gpu > 1:
        raise SystemExit(
            "Several GPUs: start with torchrun --nproc-per-node N, or choose one by CUDA_VISIBLE_DEVICES=0."
        )
    return arguments


def name_training_data(model: SentenceTransformer, options: argparse.Namespace) -> None:
    """For the model's card."""
    suffix = "" if options.train_part == ALL_ROWS else f", part {options.train_part}"
    description = {"name": Path(options.train).name + suffix}
    if not Path(options.train).exists():
        description["id"] = options.train
    model.model_card_data.train_datasets = [description]


def make_loss(
    model: SentenceTransformer, options: argparse.Namespace, batch_size: int
) -> torch.nn.Module:
    # GradCache runs every text twice, which a batch that fits the memory does not need.
    if batch_size <= options.mini_batch_size:
        return MultipleNegativesRankingLoss(model, scale=options.scale)
    return CachedMultipleNegativesRankingLoss(
        model, scale=options.scale, mini_batch_size=options.mini_batch_size
    )


def main(command_line: list[str] | None = None) -> dict[str, Any]:
    options = make_parser().parse_args(command_line)
    if Path(options.out).exists() and not options.overwrite:
        raise SystemExit(f"{options.out!r} exists: name another folder, or give --overwrite.")
    set_seed(options.seed)
    data = read_data(options.train, options.train_part)
    is_symmetric = options.symmetric or "score" in data.column_names
    training_data = select_positives(data, options.positive)
    batch_size = min(options.batch_size, len(training_data))
    evaluator = None
    if options.dev is not None:
        evaluator = make_evaluator(read_data(options.dev, options.dev_part), "dev")
    model = build_embedder(options)
    name_training_data(model, options)
    tasks = dict.fromkeys(training_data.column_names, "query" if is_symmetric else "document")
    tasks["query"] = "query"
    arguments = training_arguments(options, tasks, batch_size)
    scores_before = dict(evaluator(model)) if evaluator else {}
    trainer = SentenceTransformerTrainer(
        model=model,
        args=arguments,
        train_dataset=training_data,
        loss=make_loss(model, options, batch_size),
        evaluator=evaluator,
    )
    last_checkpoint = None
    if options.resume and Path(arguments.output_dir).is_dir():
        last_checkpoint = get_last_checkpoint(arguments.output_dir)
    trainer.train(resume_from_checkpoint=last_checkpoint)
    # Otherwise the autocast of --bf16 stays on, and computes what is saved.
    trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
    scores_after = dict(evaluator(model)) if evaluator else {}
    if trainer.is_world_process_zero():
        model.eval()
        if options.merge:
            merge_adapter(model[0].model)
        save(model, options.out, overwrite=options.overwrite)
    losses: list[float] = []
    seconds: float | None = None
    for entry in trainer.state.log_history:
        if "loss" in entry:
            losses.append(entry["loss"])
        seconds = entry.get("train_runtime", seconds)
    report = {
        "pairs": len(training_data),
        "batch": batch_size,
        "steps": arguments.max_steps,
        "loss": [losses[0], losses[-1]] if losses else [],
        "seconds": seconds,
        "before": scores_before,
        "after": scores_after,
    }
    print(json.dumps(report, ensure_ascii=False))
    return report | {"losses": losses}


if __name__ == "__main__":
    main()
