"""The package's messages in the words of the command line: they name arguments of Python, a user has options."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# Arguments of Python that have another name on the command line.
_OTHER_NAMES = {
    "path": ("folder", "out"),
    "columns": ("column",),
    "text_column": ("column",),
    "labels": ("label",),
    "prompts": ("prompt",),
    "queries": ("query",),
    "option": ("vary",),
}
# Arguments that messages begin with. (Others could be the name of a file.)
_SUBJECTS = {"tasks", "where"}
_VALUE = r"""'[^']*'|"[^"]*"|[^\s,;()]*[^\s,;:.()]"""
# As "out (--out)" and "columns={'text': …} (--column text=…)".
_BOTH_NAMES = re.compile(r"(?:(?<![=\w])\w+|\b\w+=\{[^}]*\}) \((--[^)]+)\)")
_SAME_AGAIN = re.compile(r"(--[a-z-]+)([^;.]*?) \(\1\)")  # as "Give --task 'query' or 'document' (--task)"
# A remedy of readers, which commands without that option do not have.
_NAME_ENCODING = re.compile(
    r", or name its encoding, as encoding='[\w-]+'( \([\w ]+\))?( or encoding='[\w-]+' \([\w ]+\))?"
)
_OPTION_FIRST = re.compile(r"(\w+: )?--?[a-z]")


@dataclass(frozen=True)
class CommandWords:
    """What the options and arguments of one command are called.

    Args:
        spellings: By the name of the argument of Python, as {"batch_tokens": "--batch-tokens", "input": "INPUT"}.
        flags: Names of those that take no value.
    """

    spellings: dict[str, str]
    flags: frozenset[str]

    @classmethod
    def of_command(cls, command: Any) -> CommandWords:
        """The words of a command of click."""
        spellings = dict(pair for parameter in command.params for pair in _spellings(parameter))
        for python_name, option_names in _OTHER_NAMES.items():
            for option_name in option_names:
                if option_name in spellings:
                    spellings.setdefault(python_name, spellings[option_name])
        flags = frozenset(parameter.name for parameter in command.params if getattr(parameter, "is_flag", False))
        return cls(spellings, flags)

    def translate(self, message: str) -> str:
        """A message with options in place of arguments of Python.

        Example:
            >>> words = CommandWords({"overwrite": "--overwrite", "id_column": "--id-column"}, frozenset({"overwrite"}))
            >>> words.translate("already there; give overwrite=True, or name one with id_column")
            'already there; give --overwrite, or name one with --id-column'
            >>> words = CommandWords({"where": "--where", "columns": "--column"}, frozenset())
            >>> words.translate("where: nothing; name them, columns={'text': …} (--column text=…)")
            '--where: nothing; name them, --column text=…'
        """
        if not self.spellings:
            return message
        message = _BOTH_NAMES.sub(r"\1", message)
        if "encoding" not in self.spellings:
            message = _NAME_ENCODING.sub("", message)
        names = "|".join(map(re.escape, self.spellings))
        # A remedy that is given in both ways.
        message = re.sub(rf"(?<![\w.:/-])({names})=({{[^{{}}]*}}|…) \((--[a-z-]+ [^()]*)\)", r"\3", message)
        for subject in _SUBJECTS & self.spellings.keys():
            message = re.sub(rf"^{subject}: ", f"{self.spellings[subject]}: ", message)
        long_names = "|".join(re.escape(name) for name in self.spellings if "_" in name)
        message = re.sub(rf"(?<![\w.:/-])({names})=({_VALUE})( \(--[a-z-]+\))?", self._assignment, message)
        if long_names:
            message = re.sub(rf"(?<![\w.:/'-])({long_names})(?![\w='])", self._spelling, message)
        message = _SAME_AGAIN.sub(r"\1\2", message)
        if self.flags:
            flags = "|".join(self.flags)
            message = re.sub(rf"\bwith ({flags})\b", lambda match: f"with {self._spelling(match)}", message)
        return message

    def _assignment(self, match: re.Match[str]) -> str:
        name, value = match[1], match[2]
        if name in self.flags and value == "True":
            return self.spellings[name]
        return f"{self.spellings[name]} {value}"

    def _spelling(self, match: re.Match[str]) -> str:
        return self.spellings[match[1]]


def name_option_of_value(message: str, words: Sequence[str]) -> str:
    """A message that begins with the value of an option, such as a file's name, begins with the option.

    Example:
        >>> name_option_of_value("x.csv: no such file", ["evaluate", "model", "--train", "x.csv"])
        '--train x.csv: no such file'
        >>> name_option_of_value("k0=0 is too low", ["build", "mini", "out", "--set=k0=0"])
        '--set k0=0 is too low'
        >>> name_option_of_value("k=9 (--vary): no method takes it", ["compare", "mini", "--vary", "k=9"])
        '--vary k=9: no method takes it'
        >>> name_option_of_value("the model gives NaN", ["serve", "model", "--name", "the"])
        'the model gives NaN'
    """
    for option, value in _options_of(words):
        if _begins_with(message, value):
            # The rest of the message may name the option too, for those who call the package from Python.
            return f"{option} {message.replace(f' ({option})', '')}"
    return message


def _options_of(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options of a command line with their values, which may be behind "=" or the next word."""
    for word, next_word in zip(words, (*words[1:], ""), strict=True):
        option, equals, value = word.partition("=")
        if option.startswith("--") and option != "--":
            yield option, value if equals else next_word


def _begins_with(message: str, value: str) -> bool:
    name, equals, _ = value.partition("=")
    if equals and name.isidentifier() and message.startswith(f"{name}="):
        return True
    if message.startswith(f"{value!r} "):
        return True
    # Of a file, messages tell as it was named, or by its whole path; a value may also be their first word by chance.
    names = f"{re.escape(value)}|{re.escape(os.path.abspath(value))}"
    return value != "" and re.match(rf"({names})(:|/| is (no|a) )", message) is not None


def names_an_option_first(message: str) -> bool:
    """True for a message about an option: then the command was used wrongly."""
    return _OPTION_FIRST.match(message) is not None


def _spellings(parameter: Any) -> Iterator[tuple[str, str]]:
    options = [option for option in parameter.opts if option.startswith("--")]
    spelling = options[0] if options else str(parameter.metavar or parameter.name.upper())
    yield parameter.name, spelling
    for option in parameter.opts:
        yield option.lstrip("-").replace("-", "_"), spelling
