"""hylorada prepare."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from hylorada.cli.command import Command


def _prepare_options(parser: ArgumentParser) -> None:
    parser.add_argument("--data", default="sotu", help="sotu, a file, a folder or a hub name.")
    parser.add_argument("--tokenizer", default="tiny", help="A model whose tokenizer to use.")
    parser.add_argument("--out", required=True, help="Folder for the tokens, one per split.")
    parser.add_argument("--splits", nargs="+", default=["train", "valid", "test"])


def _prepare(options: Namespace) -> None:
    from hylorada.models.pretrained import load_tokenizer
    from hylorada.text.corpus import documents
    from hylorada.text.tokens import require_disjoint, tokenise

    tokenizer = load_tokenizer(options.tokenizer)
    # Every split is looked up before the first one is written.
    texts = {split: documents(options.data, split) for split in options.splits}
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
