"""Vectors of many layers and poolings from one forward pass; methods with the same input and masks share it.

Public signatures (fixed; the bodies follow)::

    Readout(layer, pooling)                       # NamedTuple; layer 1..L (0: embeddings), pooling one of POOLINGS
    POOLINGS = ("mean", "last", "reba-mean", "reba-last", "attention")

    opened(base, **loading) -> SentenceTransformer
        # The base, loaded once with all layers; arguments as for st_reba.build. Give it to the functions below.

    vectors(base, methods, texts, *, task=None, prompt=None, parts=None, batch_tokens=DEFAULT_BATCH_TOKENS,
            progress=None) -> dict[Method, NDArray[np.float32]]
        # What each method's model gives for the texts, [N, d], scaled to length 1 where the method normalizes.
        # base: of opened(), or what build takes. Methods with the same input and masks (whatever their layer, pooling,
        # filter) run once; those that cannot share (ensembles, chunk, INTER/EXTRA/EXTEND, cls) run by themselves.
        # parts: token ranges (first, end) of each text's content: the vector of a word in place of the text's
        # (Echo and classical: mean or last token of it in the last copy; ReBA: mean of its e_i, or e of its last token).
        # progress(texts, positions) is called after each batch.

    read(model, readouts, texts, *, ...) -> Iterator[tuple[list[int], dict[Readout, Tensor]]]
        # Below vectors(): rows and their vectors [b, d] (float32, on the device, not scaled), batch after batch.
        # Readout(k, p) is exactly what a model built with layer=k gives.

    shared(methods, depth) -> dict[Method, list[Method]]
        # By the pass (a Method without layer, pooling, filter), the methods that are read from it.
"""
