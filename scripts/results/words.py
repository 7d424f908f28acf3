"""Word senses (SLPWC): which of four sentences uses a word otherwise, by method and layer; fills words.md.

python scripts/results/words.py DATA gemma3=FOLDER
"""

import json

import pandas as pd
from common import arguments, fill, table

from st_reba.evaluation import compare, read_task

METHODS = {"classical": "classical", "Echo-2": "echo", "ReBA-2": "reba", "MASK0-BIDIR": "nosink"}
# Questions that are drawn.
LIMIT = 100

given = arguments(__doc__)
for base in given.bases:
    layers = [base.depth * part // 6 for part in (2, 3, 4, 5, 6)]
    methods = [f"{name}:layer={layer}" for name in ("classical", "echo", "reba") for layer in layers]
    # From the middle layer on, masks look both ways.
    half = base.depth // 2
    methods += [f"nosink:setting=mask0-bidir,k={layer - half},layer={layer}" for layer in layers if layer > half]
    file = base.cache / "words-SLPWC.json"
    if not file.exists():
        task = read_task(given.data / "words" / "SLPWC_v1.csv", "WordSense", limit=LIMIT)
        results = compare(base.model, task, methods, draws=0).results
        file.write_text(json.dumps({each.method: dict(each.scores) for each in results}), encoding="utf-8")
    frame = pd.DataFrame(dtype=float)
    for method, each in json.loads(file.read_text(encoding="utf-8")).items():
        label = next(one for one, form in METHODS.items() if method.startswith(form))
        for metric, value in each.items():
            distance = metric.removeprefix("accuracy ").replace("euclidean", "Euclidean")
            frame.loc[f"{label}, {distance}", f"layer {method.partition('layer=')[2]}"] = 100 * value
    fill("words.md", f"{base.name} SLPWC", table(frame, f"{base.name}, SLPWC"))
