"""What `scripts/test` leaves to `scripts/test --all`, and what some versions of libraries leave to others; types."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import transformers
from packaging.version import Version
from transformers.integrations.peft import MIN_PEFT_VERSION
from transformers.utils.peft_utils import check_peft_version

# The fixture of that name: the folder of an architecture, with a tokenizer.
Base = Callable[..., str]


def _adapters_are_refused() -> bool:
    try:
        check_peft_version(min_version=MIN_PEFT_VERSION)
    except ValueError:
        return True
    return False


# transformers 5.24 came out before the PEFT it asks for. `scripts/test --consumers` and `--oldest` have others.
needs_adapters = pytest.mark.skipif(
    _adapters_are_refused(),
    reason=f"transformers {transformers.__version__} loads no adapter without PEFT {MIN_PEFT_VERSION} or newer",
)

# 5.6 is the first to know the names that an adapter of a model without a head has.
needs_own_adapters = pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.6"),
    reason=f"transformers {transformers.__version__} leaves out the weights of an embedder's adapter",
)


def slow_but(values: Iterable[Any], *fast: Any, rows: bool = False) -> list[Any]:
    """Parameters that are all marked slow, but for some.

    Args:
        values: For ``parametrize``, or a fixture's ``params``.
        fast: Values that are not marked; with `rows`, whole rows or what rows begin with.
        rows: The values are those of several parameters, one row a case.
    """
    values = list(values)
    first = [row[0] for row in values] if rows else []
    missing = [one for one in fast if one not in values and one not in first]
    assert not missing, f"no such cases: {missing}"
    return [
        value
        if value in fast or (rows and value[0] in fast)
        else pytest.param(*(value if rows else (value,)), marks=pytest.mark.slow)
        for value in values
    ]
