"""hylorada prepare and train: a YAML file, then dotted options for what differs from it."""

import os
import re
from argparse import SUPPRESS, ArgumentParser, ArgumentTypeError, Namespace
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import yaml

from hylorada.cli.command import (
    Command,
    Reader,
    SpecField,
    add_settings,
    chosen,
    default_of,
    in_words,
    parsed,
    say,
    settings_of,
    shown,
)
from hylorada.errors import SpecError
from hylorada.names import known
from hylorada.specs.adapters import METHODS
from hylorada.specs.run import RunConfig, TextSpec

SECTIONS: dict[str, type] = {
    one.name: type(default_of(one))
    for one in settings_of(RunConfig)
    if one.name not in ("adapter", "out")
}
METHOD, DEFAULT_METHOD = "adapter.method", RunConfig().adapter.method
# Each setting of an adapter, as the methods that have it define it.
OF_METHODS: dict[str, dict[str, SpecField]] = defaultdict(dict)
for method, section in METHODS.items():
    for field in settings_of(section):
        OF_METHODS[f"adapter.{field.name}"][method] = field
NAMES = [f"{name}.{field.name}" for name, spec in SECTIONS.items() for field in settings_of(spec)]
NAMES += [METHOD, *OF_METHODS]
TIMES = Counter(name.partition(".")[2] for name in NAMES)
UNIQUE = {leaf: name for name in NAMES if TIMES[leaf := name.partition(".")[2]] == 1}
# Up to version 0.1 the settings that only SubLoRA has stood in a section of their own.
MOVED = {"sublora": "adapter"}

Values = dict[str, object]


def parse(words: list[str]) -> RunConfig:
    """Return the configuration that a command line describes.

    `--data.num_train`, `--data.num-train` and, where only one section has it, `--num-train` are
    the same option.
    """
    return configuration(parsed("train", COMMANDS["train"], words))


def configuration(options: Namespace) -> RunConfig:
    """Return the configuration of the files, with what the options change of it."""
    held: Values = {}
    for file in options.config:
        held |= _stored(Path(file))
    typed = {name: value for name, value in vars(options).items() if "." in name}
    values = held | typed
    method = known(str(values.get(METHOD, DEFAULT_METHOD)), METHODS, "method")
    _refuse_other_methods(method, held, typed)
    built = {name: _section(name, spec, values) for name, spec in SECTIONS.items()}
    adapter = _section("adapter", METHODS[method], values)
    out = options.out or values.get("out")
    return RunConfig(**built, adapter=adapter, out=None if out is None else str(out))


def _section(section: str, spec: type, values: Values) -> Any:
    """Return a section with the values that are given for it."""
    found = {}
    for field in settings_of(spec):
        if (name := f"{section}.{field.name}") in values:
            found[field.name] = _converted(name, field, values[name])
    return spec(**found)


def _converted(name: str, field: SpecField, value: object) -> object:
    try:
        return Reader(field.type)(value)
    except ArgumentTypeError as error:
        raise SpecError(f"--{name} {error}") from error


def _refuse_other_methods(method: str, held: Values, typed: Values) -> None:
    """Refuse settings that the method does not have.

    A file may hold some: where the options choose another method than it does, and where it was
    written by the release that wrote the defaults of every method.
    """
    switched = held.get(METHOD, DEFAULT_METHOD) != method
    for name, value in (held | typed).items():
        homes = OF_METHODS.get(name, {method: None})
        if method in homes or (switched and name not in typed):
            continue
        field = next(iter(OF_METHODS[name].values()))
        if name in typed or _converted(name, field, value) != default_of(field):
            raise SpecError(
                f"{name} is a setting of method {' and '.join(homes)}; the method is {method}; "
                "leave it out or choose another method"
            )


def _stored(file: Path) -> Values:
    """Return what a YAML file holds, by dotted names, every name checked."""
    if not file.is_file():
        raise SpecError(f"--config must name a YAML file; {str(file)!r} does not exist")
    try:
        content = yaml.safe_load(file.read_text())
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SpecError(f"--config must name a YAML file; {file}: {_flat(error)}") from error
    if not isinstance(content, dict):
        raise SpecError(
            "--config must name a YAML file of options such as 'training: {epochs: 2}'; "
            f"it holds {_flat(file.read_text()) or 'nothing'}"
        )
    found: Values = {"out": content.pop("out", None)}
    for section, values in content.items():
        place = MOVED.get(section, str(section))
        known(place, [*SECTIONS, "adapter", "out"], f"section of {file}:")
        if not isinstance(values, dict):
            raise SpecError(f"section {section!r} of {file} must hold settings; got {values!r}")
        for name, value in values.items():
            found[known(f"{place}.{name}", NAMES, f"setting of {file}:")] = value
    return found


def _flat(text: object) -> str:
    return " ".join(str(text).split())


def normalised(word: str) -> str:
    """Return an option with underscores and its section; anything else as it is."""
    found = re.fullmatch(r"--([A-Za-z][\w.-]*)(=.*)?", word, flags=re.DOTALL)
    if found is None:
        return word
    name = found.group(1).replace("-", "_")
    section, dot, leaf = name.partition(".")
    if dot:
        name = f"{MOVED.get(section, section)}.{leaf}"
    return f"--{UNIQUE.get(name, name)}{found.group(2) or ''}"


def _train_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--config", action="append", default=[], help="A YAML file with these options.")
    add("--out", default=None, help="The run's folder; runs/ and the run's id without it.")
    add("--print_config", action="store_true", help="Show the configuration as YAML, and stop.")
    for section, spec in SECTIONS.items():
        for field in settings_of(spec):
            _add(parser, f"{section}.{field.name}", field, f"default: {shown(default_of(field))}")
    methods = f"What is trained; hylorada list methods shows them (default: {DEFAULT_METHOD})"
    add(f"--{METHOD}", default=SUPPRESS, metavar="TEXT", help=methods)
    for name, homes in OF_METHODS.items():
        defaults: dict[str, list[str]] = {}
        for method, field in homes.items():
            defaults.setdefault(shown(default_of(field)), []).append(method)
        note = "; ".join(f"{', '.join(methods)}: {value}" for value, methods in defaults.items())
        _add(parser, name, next(iter(homes.values())), note)


def _add(parser: ArgumentParser, name: str, field: SpecField, note: str) -> None:
    text, kind = f"{field.metadata['help']} ({note})", in_words(field.type)[0]
    parser.add_argument(f"--{name}", default=SUPPRESS, metavar=kind, help=text)


def _train(options: Namespace) -> None:
    config = configuration(options)
    if options.print_config:
        print(yaml.safe_dump(config.as_dict(), sort_keys=False), end="")
        return
    from hylorada.jobs.pipeline import train_run

    result = train_run(config)
    if os.environ.get("RANK", "0") != "0":  # several processes have one result
        return
    loss = result.valid_perplexity
    measured = "not measured" if loss is None else f"{loss:.3f}"
    say(
        f"run {result.id}: {result.steps} steps, {result.trainable_parameters:,} trainable "
        f"parameters, validation perplexity {measured} on {result.valid_tokens:,} tokens → "
        f"{config.out or f'runs/{result.id}'}"
    )


def _prepare_options(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--data", default="sotu", help="sotu, a file, a folder or a hub name (default: sotu)")
    add("--tokenizer", default="tiny", help="A model whose tokenizer to use (default: tiny)")
    add("--out", required=True, help="Folder for the tokens, one per split.")
    splits = ["train", "valid", "test"]
    add("--splits", nargs="+", default=splits, help=f"Which to write (default: {' '.join(splits)})")
    add_settings(parser, TextSpec)


def _prepare(options: Namespace) -> None:
    from hylorada.models.pretrained import load_tokenizer
    from hylorada.text.corpus import documents
    from hylorada.text.tokens import require_disjoint, tokenise

    spec = chosen(TextSpec, options)
    tokenizer = load_tokenizer(options.tokenizer)
    # Every split is looked up before the first one is written.
    texts = {split: documents(options.data, split, spec) for split in options.splits}
    stores = {
        split: tokenise(text, tokenizer, Path(options.out) / split) for split, text in texts.items()
    }
    require_disjoint(stores)
    for split, store in stores.items():
        print(f"{split}: {len(store):,} documents, {len(store.tokens):,} tokens")


COMMANDS = {
    "prepare": Command(
        "Turn text into token files that training maps into memory.",
        "hylorada prepare --data my_texts --tokenizer tiny --out tokens",
        _prepare_options,
        _prepare,
    ),
    "train": Command(
        "Train an adapter: --config FILE, then --section.field=value for what differs.",
        "hylorada train --config configs/train.yaml --training.epochs=2",
        _train_options,
        _train,
        "An option that only one section has needs no section: --epochs=2 is the same.\n"
        "Defaults of the adapter's settings depend on --adapter.method.",
        normalised,
    ),
}
