"""What is wrong with a command line, in one line: the rule, the value and the repair."""

import re
from collections.abc import Mapping

from jsonargparse import ArgumentParser

from hylorada.names import nearest

# The types of options as jsonargparse shows them, and what a reader calls them.
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "dict": 'a JSON object such as {"old": "new"}',
    "list": "a list such as [a, b]",
    "tuple": "a list such as [a, b]",
}


def one_line(message: str, options: Mapping[str, str], parser: ArgumentParser) -> str:
    """Return the parser's complaint on one line, with a repair where one is known.

    Args:
        message: What the parser says.
        options: The names of options as they may be mistyped, and how to show each of them.
        parser: Whose help says what is missing.
    """
    line = " ".join(message.split())
    if missing := re.fullmatch(r"the following arguments are required: (.*)", line):
        return _missing(missing.group(1).split(", "), parser)
    if line.startswith("Unexpected config:"):
        value = line.removeprefix("Unexpected config:").strip()
        return (
            "--config must name a YAML file of options such as 'training: {epochs: 2}'; "
            f"it holds {value or 'nothing'}"
        )
    if unknown := re.search(r"(?:unrecognized arguments: --|accept option ')([\w.]+)", line):
        near = nearest(unknown.group(1).rpartition(".")[2], sorted(options))
        return line if near is None else f"{line}; did you mean {options[near]!r}?"
    return _mistyped(line) or line


def _mistyped(line: str) -> str | None:
    """Return the rule that a value breaks by its type, or None if it is none of ours."""
    found = re.fullmatch(
        r'Parser key "([\w.]+)"(?: element \d+)?: (.*?)(?:Got value|Given value): (.*)', line
    )
    if found is None:
        return None
    name, types, value = found.groups()
    kinds = [KINDS[kind] for kind in re.findall(r"\b(?:class ')?(\w+)", types) if kind in KINDS]
    if literal := re.search(r"Literal\[(.*?)\]", types):
        kinds = [f"one of {literal.group(1)}".replace("'", "")]
    return f"--{name} must be {kinds[0]}; got {value!r}" if kinds else None


def _missing(names: list[str], parser: ArgumentParser) -> str:
    """Return what is missing, each with what its help says of it."""
    described = {action.dest: str(action.help) for action in parser._actions}
    parts = []
    for name in names:
        text = described.get(name.lstrip("-"), "").rstrip(".")
        parts.append(f"{name} ({text[:1].lower()}{text[1:]})" if text else name)
    return f"{parser.prog.split()[-1]} needs {' and '.join(parts)}"
