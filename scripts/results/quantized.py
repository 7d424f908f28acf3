"""Methods by the number type of the base: float32, bfloat16, int8 and nf4 (bitsandbytes); fills quantized.md.

python scripts/results/quantized.py DATA smollm2=FOLDER
"""

import pandas as pd
from common import PAPERS, Base, arguments, fill, score, stsb, table

TYPES = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "int8": {"quantization": "int8"},
    "nf4": {"quantization": "nf4"},
}
# Pairs that are drawn of STS-B's test part.
PAIRS = 100

given = arguments(__doc__)
task = stsb(given.data, "test", PAIRS)
for base in given.bases:
    half, frame = base.depth // 2, pd.DataFrame(dtype=float)
    methods = {
        **PAPERS,
        f"NoSink: MASK0-BIDIR, k = {half}, mean": f"nosink:setting=mask0-bidir,k={half}",
        "PromptEOL, attention outputs": "prompteol:read=attention",
        f"Echo-2, mean, layer {half}": f"echo:pooling=mean,layer={half}",
    }
    for name, loading in TYPES.items():
        found = Base(base.name, base.folder, given.cache, **loading).vectors(list(methods.values()), task.texts)
        for label, method in methods.items():
            frame.loc[label, name] = score(task, found[method])
    fill("quantized.md", base.name, table(frame, base.name, bold=False))
