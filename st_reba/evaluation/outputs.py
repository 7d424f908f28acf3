"""Files that results are written to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from .figures import FilePath, check_figure, check_writable, draw_results, save_figure
from .results import Result


@dataclass(frozen=True)
class OutputFiles:
    """Where results go.

    Args:
        lines: A JSON line for each result is appended to this file.
        figure: The scores are drawn into this file.

    Raises:
        OSError, ValueError: A file that cannot be written.
    """

    lines: FilePath | None
    figure: FilePath | None

    def __post_init__(self) -> None:
        if self.lines is not None:
            check_writable(self.lines, "out (--out)")
            self.append(())
        if self.figure is not None:
            check_figure(self.figure)

    def append(self, results: Sequence[Result]) -> None:
        """Append a line for each result."""
        if self.lines is None:
            return
        lines = [json.dumps(asdict(result), ensure_ascii=False) + "\n" for result in results]
        try:
            with open(self.lines, "a", encoding="utf-8") as stream:
                stream.writelines(lines)
        except OSError as error:
            raise OSError(
                f"out (--out): {str(self.lines)!r} cannot be written ({error.strerror})."
            ) from None

    def draw(self, results: Sequence[Result]) -> None:
        """Draw all results."""
        if self.figure is not None:
            save_figure(draw_results(results), self.figure)
