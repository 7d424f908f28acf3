"""The page as a Hugging Face Space: a folder that is uploaded."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..folders import new_folder
from ..version import __version__
from .names import check_language, checked, on_this_machine

# Of which a Space is made where gradio is not installed here.
_GRADIO = "6.0.0"
_APP = '''"""The page of st_reba as a Space."""

import st_reba.explore

st_reba.explore.launch({models!r}, host="0.0.0.0", port=7860, language={language!r})
'''
_README = """---
title: {quoted}
emoji: 🔎
colorFrom: blue
colorTo: gray
sdk: gradio
sdk_version: {gradio}
python_version: "3.11"
app_file: app.py
pinned: false
---

# {title}

Compare methods that turn a language model into a text embedder, look inside a text, and search a few texts. Made by
[st_reba](https://pypi.org/project/st-reba/) {version}; the same page on your own machine:

```sh
pip install 'st-reba[explore]'
st-reba explore {arguments}
```
"""


def write_space(
    folder: str | os.PathLike[str],
    models: Sequence[str],
    *,
    title: str = "Explore embeddings",
    language: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a Space that shows the page: app.py, requirements.txt, README.md.

    Args:
        folder: The folder to make; ``st-reba push FOLDER ORG/NAME`` publishes it.
        models: As for :func:`launch`; each must be on the Hub, or ``mini``.
        title: The Space's title.
        language: ``"en"`` or ``"zh"``; None: the reader's browser says it.
        overwrite: Replace a Space that is there.

    Returns:
        The folder.

    Raises:
        FileExistsError: Something is there.
        ValueError: There is no model or too many, one is on this machine alone, or the language is not known.

    Example:
        >>> folder = write_space("my_space", ["mini", "mini echo:pooling=mean"])
        >>> sorted(path.name for path in folder.iterdir())
        ['README.md', 'app.py', 'requirements.txt']
    """
    check_language(language)
    models = checked(models)
    for model in filter(on_this_machine, models):
        raise ValueError(
            f"MODEL {model!r} is on this machine, where a Space cannot read it. Publish it with st-reba push, and give "
            "its Hub id."
        )
    try:
        gradio = version("gradio")
    except PackageNotFoundError:
        gradio = _GRADIO
    arguments = " ".join(f'"{model}"' if " " in model else model for model in models)
    files = {
        "app.py": _APP.format(models=models, language=language),
        "requirements.txt": f"st-reba[explore]>={__version__}\n",
        "README.md": _README.format(
            title=title,
            quoted=json.dumps(title, ensure_ascii=False),
            gradio=gradio,
            version=__version__,
            arguments=arguments,
        ),
    }

    def is_space(there: Path) -> bool:
        return {path.name for path in there.iterdir()} == set(files)

    with new_folder(folder, overwrite=overwrite, kind="a Space of st_reba", is_kind=is_space) as made:
        for name, text in files.items():
            (made / name).write_text(text, encoding="utf-8")
    return Path(folder)
