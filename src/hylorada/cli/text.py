"""hylorada prepare."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from hylorada.cli.command import Command
from hylorada.experiments.help_text import LINES_HELP


def _prepare_options(parser: ArgumentParser) -> None:
    parser.add_argument("--data", default="sotu", help="sotu, a file, a folder or a hub name.")
    parser.add_argument("--tokenizer", default="tiny", help="A model whose tokenizer to use.")
    parser.add_argument("--out", required=True, help="Folder for the tokens, one per split.")
    parser.add_argument(
        "--splits", nargs="+", default=["train", "valid", "test"], help="Which to write."
    )
    parser.add_argument(
        "--text_field",
        type=str | None,
        default=None,
        help="Field of jsonl, parquet and hub rows that holds the text; null finds it.",
    )
    parser.add_argument("--lines", default="auto", help=LINES_HELP)
    parser.add_argument(
        "--replace", type=dict[str, str], default={}, help="Strings to replace, as JSON."
    )


def _prepare(options: Namespace) -> None:
    from hylorada.models.pretrained import load_tokenizer
    from hylorada.text.corpus import TextSpec, documents
    from hylorada.text.store import require_disjoint
    from hylorada.text.tokens import tokenise

    spec = TextSpec(text_field=options.text_field, lines=options.lines, replace=options.replace)
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
}
