"""The package's messages name Python arguments; here these become command-line options."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

# Python arguments, and the command-line options that they correspond to.
_OPTIONS_OF_ARGUMENTS = {
    "path": ("index_folder", "out"),
    "columns": ("column",),
    "text_column": ("column",),
    "labels": ("label",),
    "prompts": ("prompt",),
    "purpose": ("for",),
    "option": ("vary",),
}
# Arguments that may begin a message. (Another word there could be a file's name.)
_SUBJECTS = {"tasks", "where"}
_VALUE = r"""'[^']*'|"[^"]*"|[^\s,;()]*[^\s,;:.()]"""
# As "Give --task 'query' or 'document' (--task)".
_REPEATED_OPTION = re.compile(r"(--[a-z-]+)([^;.]*?) \(\1\)")
# A remedy that only commands with that option can offer.
_NAME_ENCODING = re.compile(
    r", or name its encoding, as encoding='[\w-]+'( \([\w ]+\))?( or encoding='[\w-]+' \([\w ]+\))?"
)
_OPTION_FIRST = re.compile(r"(\w+: )?--?[a-z]")


class ClickParameter(Protocol):
    """An option or an argument of click, whose classes some versions of typer keep private."""

    name: str
    opts: list[str]
    metavar: str | None


class ClickCommand(Protocol):
    """A command of click."""

    params: Sequence[ClickParameter]


@dataclass(frozen=True)
class CommandWords:
    """How one command writes its options and arguments.

    Args:
        spellings: By Python argument: {"batch_tokens": "--batch-tokens", "input": "INPUT"}.
        flags: Names of the options that take no value.
    """

    spellings: dict[str, str]
    flags: frozenset[str]

    @classmethod
    def of_command(cls, command: ClickCommand) -> CommandWords:
        """The words of a command of click."""
        spellings: dict[str, str] = {}
        flags: set[str] = set()
        for parameter in command.params:
            long_options = [
                option_word for option_word in parameter.opts if option_word.startswith("--")
            ]
            spelling = long_options[0] if long_options else str(parameter.metavar)
            for option_word in parameter.opts:
                python_name = option_word.lstrip("-").replace("-", "_")
                spellings[python_name] = spelling
                if getattr(parameter, "is_flag", False):
                    flags.add(python_name)
        for argument, option_names in _OPTIONS_OF_ARGUMENTS.items():
            for option_name in option_names:
                if option_name in spellings:
                    spellings.setdefault(argument, spellings[option_name])
        return cls(spellings, frozenset(flags))

    def translate(self, message: str) -> str:
        """A message with command-line options in place of Python arguments.

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
        any_name = _any_of(self.spellings)
        # As "out (--out)" and "columns={'text': …} (--column text=…)".
        message = re.sub(rf"(?<![\w=.-])({any_name})(={{[^}}]*}})? \((--[^)]+)\)", r"\3", message)
        if "encoding" not in self.spellings:
            message = _NAME_ENCODING.sub("", message)
        # Of a remedy given for both Python and the command line, keep the latter.
        message = re.sub(
            rf"(?<![\w.:/-])({any_name})=({{[^{{}}]*}}|…) \((--[a-z-]+ [^()]*)\)", r"\3", message
        )
        for subject in _SUBJECTS & self.spellings.keys():
            message = re.sub(rf"^{subject}: ", f"{self.spellings[subject]}: ", message)
        message = re.sub(
            rf"(?<![\w.:/-])({any_name})=({_VALUE})( \(--[a-z-]+\))?",
            self._spell_assignment,
            message,
        )
        # A one-word name may be an ordinary word, unless "=" or "with" marks it as an argument.
        long_names = [name for name in self.spellings if "_" in name]
        if long_names:
            message = re.sub(
                rf"(?<![\w.:/'-])({_any_of(long_names)})(?![\w='])", self._spell_name, message
            )
        message = _REPEATED_OPTION.sub(r"\1\2", message)
        if self.flags:
            message = re.sub(rf"\bwith ({_any_of(self.flags)})\b", self._spell_flag, message)
        return message

    def _spell_assignment(self, match: re.Match[str]) -> str:
        name, value = match.group(1, 2)
        if name in self.flags and value == "True":
            return self.spellings[name]
        return f"{self.spellings[name]} {value}"

    def _spell_name(self, match: re.Match[str]) -> str:
        return self.spellings[match[1]]

    def _spell_flag(self, match: re.Match[str]) -> str:
        return f"with {self._spell_name(match)}"


def _any_of(names: Iterable[str]) -> str:
    return "|".join(map(re.escape, names))


def name_option_of_value(message: str, command_line: Sequence[str]) -> str:
    """Put the option before a message that begins with its value, such as a file's name.

    Example:
        >>> name_option_of_value("x.csv: no such file", ["evaluate", "model", "--train", "x.csv"])
        '--train x.csv: no such file'
        >>> name_option_of_value("k0=0 is too low", ["build", "mini", "out", "--set=k0=0"])
        '--set k0=0 is too low'
        >>> name_option_of_value("k=9 (--vary): no method takes it", ["compare", "mini", "--vary", "k=9"])
        '--vary k=9: no method takes it'
        >>> name_option_of_value("the model gives NaN", ["serve", "model", "--name", "the"])
        'the model gives NaN'
        >>> name_option_of_value("0: no index", ["serve", "model", "--port", "0", "--index", "0"])
        '0: no index'
    """
    option_words: set[str] = set()
    for option_word, value in _options_of(command_line):
        if _begins_with(message, value):
            option_words.add(option_word)
    if len(option_words) != 1:  # none, or several have that value
        return message
    option_word = option_words.pop()
    # For callers from Python, the rest of the message may name the option too.
    return f"{option_word} {message.replace(f' ({option_word})', '')}"


def _options_of(command_line: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options of a command line with their values, after "=" or in the next word."""
    next_words = [*command_line[1:], ""]
    for word, next_word in zip(command_line, next_words, strict=True):
        option_word, equals, value = word.partition("=")
        if option_word.startswith("--") and option_word != "--":
            yield option_word, value if equals else next_word


def _begins_with(message: str, value: str) -> bool:
    name, equals, _ = value.partition("=")
    if equals and name.isidentifier() and message.startswith(f"{name}="):
        return True
    if message.startswith(f"{value!r} "):
        return True
    if not value:
        return False
    # A message names a file as the user did, or by its absolute path. What follows shows whether
    # it is that value, or a word that happens to be the same.
    file_names = _any_of([value, _absolute_path(value)])
    return re.match(rf"({file_names})(:|/| is (no|a) )", message) is not None


def _absolute_path(path: str) -> str:
    try:
        return os.path.abspath(path)
    except FileNotFoundError:  # the current folder is deleted
        return path


def names_an_option_first(message: str) -> bool:
    """Whether a message is about an option: then the command was used wrongly."""
    return _OPTION_FIRST.match(message) is not None
