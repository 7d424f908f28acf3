"""Files that results are written to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .figures import FilePath, check_figure, check_writable, draw_results, save_figure
from .results import Result

# Bytes; a line of results is far shorter.
_MAX_LINE_LENGTH = 2**20


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
            _check_holds_results(Path(self.lines))
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


def _check_holds_results(path: Path) -> None:
    """Refuse to append to a file of something else, such as the table that is scored."""
    if not path.is_file() or not path.stat().st_size:
        return
    with path.open("rb") as stream:
        first_line = stream.readline(_MAX_LINE_LENGTH)
    try:
        first_result = json.loads(first_line)
    except ValueError:
        first_result = None
    if not isinstance(first_result, dict) or not {"task", "metric", "score"} <= first_result.keys():
        raise ValueError(
            f"out (--out): {str(path)!r} is there and holds no results. Give another file."
        )
