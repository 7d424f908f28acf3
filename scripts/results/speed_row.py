#!/usr/bin/env python
"""One row of the tables of speed.py: a process that encodes its texts again whenever it is asked to.

The first line of standard input is the job as JSON; every further line is a command and a kind of
texts, which is answered by a line of JSON. Files of llama.cpp are run by llama-cpp-python, which
may be in an environment of its own: nothing else is imported for them.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from process_memory import peak_bytes

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

# Texts that run before the clock does, and texts whose vectors are compared with another row's.
WARM_UP_TEXTS = 4
CHECKED_TEXTS = 32


@dataclass(frozen=True)
class RowJob:
    """What a process is to encode, and how.

    Args:
        runner_name: A key of RUNNERS.
        model_path: Folder or GGUF file.
        texts_by_kind: Short and long texts; of llama.cpp, the token ids of each as JSON.
        runner_options: Further arguments of the runner.
    """

    runner_name: str
    model_path: str
    texts_by_kind: dict[str, list[str]]
    runner_options: dict[str, object] = field(default_factory=dict)


class Runner(Protocol):
    """What turns texts into vectors, and counts the positions that it computes, padding among them."""

    position_count: int

    def encode(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector of each text."""

    def prompt_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text with its prompt."""


class Pipeline:
    """A model of sentence-transformers."""

    def __init__(self, pipeline_model: SentenceTransformer) -> None:
        self.pipeline_model = pipeline_model
        self.position_count = 0
        input_module: Any = pipeline_model[0]
        self.input_module = input_module
        token_embeddings = input_module.model.get_input_embeddings()
        token_embeddings.register_forward_hook(self.count_positions)

    def count_positions(
        self,
        module: object,
        module_inputs: tuple[Tensor, ...],
        module_output: object,
    ) -> None:
        """Add the positions of a pass."""
        token_ids = module_inputs[0]
        self.position_count += token_ids.numel()

    def encode(self, texts: Sequence[str]) -> list[list[float]]:
        """In batches of 32, as ``encode`` does unless it is told otherwise."""
        text_vectors = self.pipeline_model.encode(list(texts))
        vector_lists: list[list[float]] = text_vectors.tolist()
        return vector_lists

    def prompt_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text's row."""
        batch_features = self.input_module.preprocess(list(texts))
        row_lengths = batch_features["attention_mask"].sum(dim=1).tolist()
        padded_rows = batch_features["input_ids"].tolist()
        row_ids: list[list[int]] = []
        for padded_ids, row_length in zip(padded_rows, row_lengths, strict=True):
            row_ids.append(padded_ids[:row_length])
        return row_ids


def build_ours(
    base_path: str,
    *,
    shares_prefix: bool = True,
    **build_options: object,
) -> Pipeline:
    """What ``st_reba.build`` makes; without ``shares_prefix``, every row holds the whole prompt."""
    import st_reba

    embedder = st_reba.build(base_path, device="cpu", **build_options)  # type: ignore[arg-type]
    if not shares_prefix:
        input_module: Any = embedder[0]
        input_module.shares_prefix = False
    return Pipeline(embedder)


def build_stock_mean(base_path: str) -> Pipeline:
    """What sentence-transformers itself has for a base: Transformer, and the mean of all positions."""
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    # Else a base with a chat template gets every text as a turn of a conversation.
    plain_text = {"method": "forward", "method_output_name": "last_hidden_state"}
    transformer = Transformer(
        base_path,
        model_kwargs={"dtype": torch.float32},
        modality_config={"text": plain_text},
        module_output_name="token_embeddings",
    )
    tokenizer = transformer.tokenizer
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    mean_pooling = Pooling(transformer.get_embedding_dimension())
    stock_model = SentenceTransformer(
        modules=[transformer, mean_pooling],
        device="cpu",
    )
    return Pipeline(stock_model)


def load_trained(model_folder: str) -> Pipeline:
    """A trained model of sentence-transformers, as it is loaded."""
    from sentence_transformers import SentenceTransformer

    trained_model = SentenceTransformer(model_folder, device="cpu")
    return Pipeline(trained_model)


class LlamaCpp:
    """llama.cpp's embeddings, pooled at the last position; a text is the JSON of its token ids.

    Its own tokenizer would merge characters across the seams of a prompt, so it is not asked.
    """

    def __init__(self, gguf_file: str, thread_count: int, context_length: int) -> None:
        from llama_cpp import LLAMA_POOLING_TYPE_LAST, Llama
        from llama_cpp.llama_tokenizer import BaseLlamaTokenizer

        class JsonTokenizer(BaseLlamaTokenizer):  # type: ignore[misc]
            def tokenize(
                self,
                text: bytes,
                add_bos: bool = True,
                special: bool = True,
            ) -> list[int]:
                token_ids: list[int] = json.loads(text)
                return token_ids

            def detokenize(self, *arguments: object) -> bytes:
                raise NotImplementedError("embeddings make no text")

        self.position_count = 0
        self.llama = Llama(
            gguf_file,
            n_ctx=context_length,
            n_batch=context_length,
            n_ubatch=context_length,
            n_threads=thread_count,
            n_threads_batch=thread_count,
            embedding=True,
            pooling_type=LLAMA_POOLING_TYPE_LAST,
            tokenizer=JsonTokenizer(),
            verbose=False,
        )

    def encode(self, texts: Sequence[str]) -> list[list[float]]:
        """As many texts in a batch as there is room for."""
        text_vectors, token_count = self.llama.embed(
            list(texts),
            normalize=True,
            return_count=True,
        )
        self.position_count += token_count
        return list(text_vectors)

    def prompt_ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The texts, which are these ids."""
        row_ids: list[list[int]] = []
        for json_ids in texts:
            row_ids.append(json.loads(json_ids))
        return row_ids


RUNNERS: dict[str, Callable[..., Runner]] = {
    "st_reba": build_ours,
    "sentence-transformers": build_stock_mean,
    "trained": load_trained,
    "llama.cpp": LlamaCpp,
}


def answer_command(
    command_name: str,
    runner: Runner,
    texts: Sequence[str],
) -> object:
    """Encode texts and say what that took, or give the vectors of the first or the token ids of all."""
    if command_name == "vectors":
        return runner.encode(texts[:CHECKED_TEXTS])
    if command_name == "prompt ids":
        return runner.prompt_ids(texts)
    runner.position_count = 0
    start_time = time.perf_counter()
    runner.encode(texts)
    seconds = time.perf_counter() - start_time
    return {
        "seconds": seconds,
        "position_count": runner.position_count,
        "peak_memory": peak_bytes() / 2**30,
    }


def serve(input_lines: Iterable[str]) -> None:
    """Set up a runner, then answer commands until there are no more."""
    answer_stream = sys.stdout
    # What libraries print is not an answer.
    sys.stdout = sys.stderr
    line_iterator = iter(input_lines)
    job = RowJob(**json.loads(next(line_iterator)))
    make_runner = RUNNERS[job.runner_name]
    runner = make_runner(job.model_path, **job.runner_options)
    for texts in job.texts_by_kind.values():
        runner.encode(texts[:WARM_UP_TEXTS])
    print(json.dumps("ready"), file=answer_stream, flush=True)
    for command_line in line_iterator:
        command_name, text_kind = json.loads(command_line)
        texts = job.texts_by_kind[text_kind]
        command_answer = answer_command(command_name, runner, texts)
        print(json.dumps(command_answer), file=answer_stream, flush=True)


if __name__ == "__main__":
    serve(sys.stdin)
