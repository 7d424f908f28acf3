"""Serve a model on several processes or machines: the application of st-reba serve, as Ray Serve replicas.

    pip install '.[serve]' 'ray[serve]'     # in the checkout
    python examples/ray_serve.py my_model --replicas 1 4

Ray starts more replicas while requests wait, stops some when none do, and replaces any that dies.
Clients are those of st-reba serve, at http://127.0.0.1:8000/v1. For several machines, join them
with `ray start` first; each must have the model's folder, or give a Hub id.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import ray
from ray import serve

from st_reba.serve.access import API_KEY_VARIABLE, read_keys


def make_application(
    model_name: str,
    served_name: str,
    index_folder: str | None,
    thread_count: int,
    api_keys: list[str],
) -> Callable[[], Any]:
    """A function that makes the application in each replica, with a model of its own."""

    def make() -> Any:
        import torch

        import st_reba
        from st_reba.serve.app import EmbeddingServer

        torch.set_num_threads(thread_count)
        model = st_reba.load(model_name)
        index = None if index_folder is None else st_reba.Index.open(index_folder, model)
        return EmbeddingServer(model, served_name, index=index, keys=api_keys)

    return make


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", help="a saved model's folder or Hub id")
    parser.add_argument("--index", help="an index of this model")
    parser.add_argument("--replicas", type=int, nargs=2, default=(1, 4), metavar=("LEAST", "MOST"))
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each replica")
    parser.add_argument("--port", type=int, default=8000)
    return parser.parse_args()


def main() -> None:
    options = parse_options()
    model_name = served_name = options.model
    if os.path.isdir(options.model):
        model_name = os.path.abspath(options.model)
        served_name = os.path.basename(model_name)
    index_folder = None if options.index is None else os.path.abspath(options.index)
    api_keys = read_keys(os.environ.get(API_KEY_VARIABLE))
    environment = {"TOKENIZERS_PARALLELISM": "false"}
    ray.init(include_dashboard=False, runtime_env={"env_vars": environment})
    serve.start(http_options={"host": "127.0.0.1", "port": options.port})
    min_replicas, max_replicas = options.replicas
    application = make_application(model_name, served_name, index_folder, options.threads, api_keys)

    @serve.deployment(
        autoscaling_config={
            "min_replicas": min_replicas,
            "max_replicas": max_replicas,
            "initial_replicas": min_replicas,
            "target_ongoing_requests": 8,
        },
        # A replica takes enough for batches to fill; the others wait for one that is free.
        max_ongoing_requests=64,
        ray_actor_options={"num_cpus": options.threads},
        graceful_shutdown_timeout_s=120,
    )
    @serve.ingress(application)
    class Embeddings:
        pass

    serve.run(Embeddings.bind())
    address = f"http://127.0.0.1:{options.port}/v1"
    print(f"Serving {served_name!r} at {address}  (Ctrl+C ends it)", flush=True)
    try:
        while True:
            time.sleep(3600)
    finally:  # Ctrl+C, and SIGTERM, which Ray makes an exit
        serve.shutdown()


if __name__ == "__main__":
    main()
