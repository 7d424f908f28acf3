"""NoSink's k on STS-B, and the share of attention that the first token gets; fills docs/results/nosink.md.

python scripts/results/nosink.py DATA smollm2=FOLDER gemma3=FOLDER
"""

import pandas as pd
from common import CHOOSING, arguments, fill, ks_of, score, stsb, table

from st_reba.evaluation.attention import attention_maps, sink_table
from st_reba.evaluation.readouts import of_base
from st_reba.methods import Method

# Texts whose attention is measured.
TEXTS = 50

given = arguments(__doc__)
for base in given.bases:
    frame = pd.DataFrame(dtype=float)
    methods = {0: "classical:pooling=mean"} | {k: f"nosink:setting=mask0-bidir,k={k}" for k in ks_of(base)}
    task = stsb(given.data, "dev", CHOOSING)
    found = base.vectors(list(methods.values()), task.texts)
    for k, method in methods.items():
        frame.loc[k, "STS-B, dev"] = score(task, found[method])
    fill("nosink.md", f"{base.name} k", table(frame, f"{base.name}, k"))
    file = base.cache / "sinks.json"
    if not file.exists():
        model, texts = of_base(base.model, Method("classical")), stsb(given.data, "dev").texts[:TEXTS]
        sink_table(attention_maps(model, text) for text in texts).to_json(file)
    found = pd.read_json(file)
    columns = {"on the first token": "sink", "if it were even": "even", "on the token itself": "itself"}
    shown = 100 * found.set_index(found["layer"] + 1)[list(columns.values())].set_axis(list(columns), axis=1)
    fill("nosink.md", f"{base.name} sink", table(shown, f"{base.name}, layer", digits=0, bold=False))
