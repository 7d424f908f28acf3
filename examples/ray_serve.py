"""Serve a model on several processes or machines: the application of st-reba serve, as Ray Serve replicas.

    pip install '.[serve]' 'ray[serve]'     # in the checkout
    python examples/ray_serve.py my_model --replicas 1 4

Ray starts more replicas where requests wait, and stops some where none do; one that dies is replaced. Clients are those
of st-reba serve, at http://127.0.0.1:8000/v1. For several machines, join them with `ray start` first; each must have
the model's folder, or give a Hub id.
"""

from __future__ import annotations

import argparse
import os
import time
from typing import Any

import ray
from ray import serve

from st_reba.serve.access import API_KEY_VARIABLE, read_keys


def application(model: str, name: str, index: str | None, threads: int, keys: list[str]) -> Any:
    """The application, made in each replica, whose model no other shares."""

    def make() -> Any:
        import torch

        import st_reba
        from st_reba.serve.app import EmbeddingServer

        torch.set_num_threads(threads)
        loaded = st_reba.load(model)
        opened = None if index is None else st_reba.Index.open(index, loaded)
        return EmbeddingServer(loaded, name, index=opened, keys=keys)

    return make


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="a saved model's folder or Hub id")
    parser.add_argument("--index", help="an index of it")
    parser.add_argument("--replicas", type=int, nargs=2, default=(1, 4), metavar=("LEAST", "MOST"))
    parser.add_argument("--threads", type=int, default=1, help="of torch, in each replica")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    model = os.path.abspath(options.model) if os.path.isdir(options.model) else options.model
    name = os.path.basename(model) if os.path.isdir(model) else model
    index = None if options.index is None else os.path.abspath(options.index)
    keys = read_keys(os.environ.get(API_KEY_VARIABLE))
    ray.init(include_dashboard=False, runtime_env={"env_vars": {"TOKENIZERS_PARALLELISM": "false"}})
    serve.start(http_options={"host": "127.0.0.1", "port": options.port})
    least, most = options.replicas
    scaling = {"min_replicas": least, "max_replicas": most, "initial_replicas": least, "target_ongoing_requests": 8}

    @serve.deployment(
        autoscaling_config=scaling,
        # A replica takes enough for batches to fill; the others wait for one that is free.
        max_ongoing_requests=64,
        ray_actor_options={"num_cpus": options.threads},
        graceful_shutdown_timeout_s=120,
    )
    @serve.ingress(application(model, name, index, options.threads, keys))
    class Embeddings:
        pass

    serve.run(Embeddings.bind())
    print(f"Serving {name!r} at http://127.0.0.1:{options.port}/v1  (Ctrl+C ends it)", flush=True)
    try:
        while True:
            time.sleep(3600)
    finally:  # Ctrl+C, and SIGTERM, which Ray makes an exit
        serve.shutdown()


if __name__ == "__main__":
    main()
