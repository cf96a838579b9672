"""Pretrain the embedded model `tiny`: tokenizer, weights and model card, in three steps.

    tokenize  books and PEPs -> tokenizer.json and arrays of tokens (CPU, a minute)
    train     arrays -> weights in float16 (one GPU, a few minutes; needs torch and transformers)
    card      weights -> README.md with figures on the embedded corpus (CPU, a minute)

The text is public domain: whole books published up to 1923, and Python Enhancement Proposals. The
embedded State of the Union corpus is never trained on, so that it stays a test.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from transformers.modeling_outputs import CausalLMOutputWithPast

END_OF_TEXT = "<|endoftext|>"
VOCABULARY = 2048
CONTEXT = 1024
HELD_OUT = ("books", "peps")
CARD_TEMPLATE = Path(__file__).with_name("tiny_card.md")


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One training run: the best on held-out text is kept."""

    dropout: float
    epochs: float

    @classmethod
    def parse(cls, text: str) -> "Candidate":
        """Return the candidate written as dropout:epochs."""
        dropout, epochs = text.split(":")
        return cls(dropout=float(dropout), epochs=float(epochs))


def main() -> None:
    arguments = parsed_arguments()
    match arguments.step:
        case "tokenize":
            tokenize(arguments.books, arguments.peps, arguments.out)
        case "train":
            train(arguments)
        case "card":
            card(arguments.data, arguments.model)


def parsed_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    steps = parser.add_subparsers(dest="step", required=True)
    step = steps.add_parser("tokenize")
    step.add_argument("--books", type=Path, required=True, help="folder with train and valid files")
    step.add_argument("--peps", type=Path, required=True, help="folder with one jsonl file")
    step.add_argument("--out", type=Path, required=True)
    step = steps.add_parser("train")
    step.add_argument("--data", type=Path, required=True, help="what tokenize wrote")
    step.add_argument("--out", type=Path, required=True)
    step.add_argument("--minutes", type=float, default=6.0, help="for all candidates together")
    step.add_argument(
        "--candidates",
        type=Candidate.parse,
        nargs="+",
        metavar="DROPOUT:EPOCHS",
        default=[Candidate.parse(text) for text in ("0.0:15", "0.1:30", "0.1:60")],
    )
    step.add_argument("--batch", type=int, default=32, help="blocks of 1024 tokens a step")
    step.add_argument("--lr", type=float, default=2e-3)
    step.add_argument("--compile", action="store_true")
    step.add_argument("--seed", type=int, default=0)
    step = steps.add_parser("card")
    step.add_argument("--data", type=Path, required=True, help="what tokenize wrote")
    step.add_argument(
        "--model", type=Path, required=True, help="what train wrote; the card goes there"
    )
    return parser.parse_args()


def tokenize(books: Path, peps: Path, out: Path) -> None:
    """Train the tokenizer on the training text and write every part as uint16 tokens."""
    from hylorada.text.corpus import documents  # the train step runs where only torch is installed

    # PEPs have no named splits: those that the hash calls test are held out.
    sources = {
        "train": [(books, "train"), (peps, "train"), (peps, "valid")],
        "held_out_books": [(books, "valid")],
        "held_out_peps": [(peps, "test")],
    }
    texts = {
        part: [
            document.text.replace("\r\n", "\n") for pair in pairs for document in documents(*pair)
        ]
        for part, pairs in sources.items()
    }
    tokenizer = trained_tokenizer(texts["train"])
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    facts = {}
    for part, part_texts in texts.items():
        encoded = tokenizer.encode_batch([END_OF_TEXT + text for text in part_texts])
        tokens = np.concatenate([np.array(one.ids, dtype=np.uint16) for one in encoded])
        np.save(out / f"{part}.npy", tokens)
        size = sum(len(text.encode()) for text in part_texts)
        facts[part] = {"documents": len(part_texts), "tokens": tokens.size, "bytes": size}
        print(part, facts[part])
    (out / "facts.json").write_text(json.dumps(facts, indent=1))


def trained_tokenizer(texts: list[str]) -> Tokenizer:
    """Return a byte-level BPE learnt from the texts, its end-of-text token first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(texts, trainer, length=len(texts))
    return tokenizer


def fresh_model(dropout: float, seed: int) -> GPT2LMHeadModel:
    """Return GPT-2's architecture at 3.95 million parameters, tied embeddings included."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=CONTEXT,
        n_embd=256,
        n_layer=4,
        n_head=4,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        use_cache=False,
    )
    return GPT2LMHeadModel(config)


def train(arguments: argparse.Namespace) -> None:
    """Train every candidate for its share of the minutes and write the best one's weights."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    stream = on_device(arguments.data / "train.npy", device)
    held_out = {
        part: on_device(arguments.data / f"held_out_{part}.npy", device) for part in HELD_OUT
    }
    all_epochs = sum(candidate.epochs for candidate in arguments.candidates)
    best = math.inf
    history = []
    for candidate in arguments.candidates:
        minutes = arguments.minutes * candidate.epochs / all_epochs
        model = fresh_model(candidate.dropout, arguments.seed)
        torch.nn.Module.to(model, device)
        steps, tokens = fit(model, stream, held_out, candidate, minutes, arguments)
        losses = {part: held_out_loss(model, tokens_) for part, tokens_ in held_out.items()}
        mean = sum(losses.values()) / len(losses)
        history.append(
            {
                "dropout": candidate.dropout,
                "epochs": tokens / stream.numel(),
                "steps": steps,
                "tokens": tokens,
                "batch_blocks": arguments.batch,
                "lr": arguments.lr,
                "held_out_nats_per_token": losses,
                "mean": mean,
            }
        )
        print(json.dumps(history[-1]), flush=True)
        if mean < best:
            best = mean
            write(model, arguments.data / "tokenizer.json", arguments.out)
    device_name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
    record = {"device": device_name, "torch": torch.__version__, "candidates": history}
    (arguments.out / "training.json").write_text(json.dumps(record, indent=1))


def on_device(path: Path, device: str) -> Tensor:
    return torch.from_numpy(np.load(path).astype(np.int64)).to(device)


def fit(
    model: GPT2LMHeadModel,
    stream: Tensor,
    held_out: dict[str, Tensor],
    candidate: Candidate,
    minutes: float,
    arguments: argparse.Namespace,
) -> tuple[int, int]:
    """Train until the epochs or the minutes are over; return steps and tokens."""
    device = stream.device
    optimizer = adamw(model, arguments.lr, fused=device.type == "cuda")
    forward = torch.compile(model) if arguments.compile else model
    blocks = shuffled_blocks(stream, arguments.batch, arguments.seed)
    wanted = candidate.epochs * stream.numel()
    start = time.monotonic()
    steps = tokens = 0
    progress, next_report = 0.0, 0.0
    while progress < 1.0:
        model.train()
        for group in optimizer.param_groups:
            group["lr"] = arguments.lr * rate_factor(steps, progress)
        batch = next(blocks)
        loss = next_token_loss(forward, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        steps += 1
        tokens += batch.numel()
        progress = max(tokens / wanted, (time.monotonic() - start) / (60 * minutes))
        if progress >= next_report:
            next_report += 0.1
            losses = {part: round(held_out_loss(model, t), 3) for part, t in held_out.items()}
            elapsed = time.monotonic() - start
            print(
                f"{candidate} {progress:4.0%} step {steps} train {loss.item():.3f} {losses} "
                f"{tokens / elapsed:,.0f} tokens/s",
                flush=True,
            )
    return steps, tokens


def adamw(model: GPT2LMHeadModel, lr: float, *, fused: bool) -> torch.optim.AdamW:
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    plain = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=fused)


def rate_factor(step: int, progress: float, warmup: int = 200) -> float:
    """Return the share of the learning rate: linear warm-up, then a cosine down to zero."""
    return min(1.0, (step + 1) / warmup) * 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))


def shuffled_blocks(stream: Tensor, batch: int, seed: int) -> Iterator[Tensor]:
    """Yield batches of blocks for ever; each epoch cuts the stream at another offset."""
    draw = torch.Generator().manual_seed(seed)
    while True:
        offset = int(torch.randint(CONTEXT, (), generator=draw))
        count = (stream.numel() - offset) // CONTEXT
        blocks = stream[offset : offset + count * CONTEXT].view(count, CONTEXT)
        order = torch.randperm(count, generator=draw).to(stream.device)
        for part in order.split(batch):
            yield blocks[part]


def next_token_loss(model: Callable[..., CausalLMOutputWithPast], batch: Tensor) -> Tensor:
    """Return the mean loss of a batch in nats per token, in bfloat16 where that is fast."""
    with torch.autocast(batch.device.type, torch.bfloat16, enabled=batch.is_cuda):
        logits = model(input_ids=batch).logits
    assert logits is not None
    return torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), batch[:, 1:].flatten()
    )


@torch.no_grad()
def held_out_loss(model: GPT2LMHeadModel, tokens: Tensor, most_blocks: int = 400) -> float:
    """Return the mean loss in nats per token over the first blocks of 1024."""
    model.eval()
    count = min(most_blocks, tokens.numel() // CONTEXT)
    blocks = tokens[: count * CONTEXT].view(count, CONTEXT)
    losses = []
    for part in blocks.split(40):
        losses.append(next_token_loss(model, part) * len(part))
    return float(torch.stack(losses).sum() / count)


def write(model: GPT2LMHeadModel, tokenizer_file: Path, out: Path) -> None:
    """Write the model in float16 with its tokenizer, as a folder that `transformers` loads."""
    state = {name: value.half() for name, value in model.state_dict().items()}
    stored = GPT2LMHeadModel(model.config).half()
    stored.load_state_dict(state)
    # Adaptation and the documented comparisons run without dropout unless a user asks for it.
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        setattr(stored.config, name, 0.0)
    stored.config.use_cache = True
    stored.generation_config.use_cache = True
    stored.save_pretrained(out)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(tokenizer_file),
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        model_max_length=CONTEXT,
    )
    tokenizer.save_pretrained(out)


def card(data: Path, model_folder: Path) -> None:
    """Measure the stored model on the embedded corpus and write its README.md."""
    from hylorada.text.corpus import documents  # the train step runs where only torch is installed

    model = GPT2LMHeadModel.from_pretrained(model_folder, dtype=torch.float32).eval()
    tokenizer = Tokenizer.from_file(str(model_folder / "tokenizer.json"))
    texts = {
        split: [document.text for document in documents("sotu", split)]
        for split in ("train", "test")
    }
    ids = {
        split: [one.ids for one in tokenizer.encode_batch(part)] for split, part in texts.items()
    }
    tokens = sum(map(len, ids["test"]))
    size = sum(len(text.encode()) for text in texts["test"])
    nats = sum(document_nats(model, document) for document in ids["test"])
    figures = {
        "documents": len(texts["test"]),
        "tokens": tokens,
        "bytes": size,
        "model_nats": nats,
        "unigram_nats": unigram_nats(ids["train"], ids["test"]),
        "parameters": model.num_parameters(),
        "weight_bytes": (model_folder / "model.safetensors").stat().st_size,
    }
    print(json.dumps(figures))
    training = json.loads((model_folder / "training.json").read_text())
    facts = json.loads((data / "facts.json").read_text())
    (model_folder / "README.md").write_text(card_text(figures, training, facts), encoding="utf-8")


@torch.no_grad()
def document_nats(model: GPT2LMHeadModel, ids: list[int]) -> float:
    """Return the loss over a whole document in nats, every token scored once.

    Windows of 1024 do not overlap; each begins with the end-of-text token in place of what came
    before, so its first tokens have little context.
    """
    nats = 0.0
    for start in range(0, len(ids), CONTEXT - 1):
        row = torch.tensor([[0, *ids[start : start + CONTEXT - 1]]])
        nats += float(next_token_loss(model, row)) * (row.numel() - 1)
    return nats


def unigram_nats(train: list[list[int]], test: list[list[int]]) -> float:
    """Return the loss of token frequencies, counted on the corpus' own train split plus one."""
    counts = np.bincount(np.concatenate(train), minlength=VOCABULARY) + 1.0
    log_probabilities = np.log(counts / counts.sum())
    return -float(log_probabilities[np.concatenate(test)].sum())


def card_text(figures: dict[str, float], training: dict[str, Any], facts: dict[str, Any]) -> str:
    """Return the model card, its template filled with figures."""
    tokens, size = figures["tokens"], figures["bytes"]
    best = min(training["candidates"], key=lambda run: run["mean"])
    rows = {"model_row": ("tiny", figures["model_nats"] / tokens, size / tokens)}
    unigram = "unigram frequencies of the corpus' own train split"
    rows["unigram_row"] = (unigram, figures["unigram_nats"] / tokens, size / tokens)
    for part in HELD_OUT:
        bytes_per_token = facts[f"held_out_{part}"]["bytes"] / facts[f"held_out_{part}"]["tokens"]
        rows[f"{part}_row"] = (part, best["held_out_nats_per_token"][part], bytes_per_token)
    return CARD_TEMPLATE.read_text(encoding="utf-8").format(
        **{name: table_row(*values) for name, values in rows.items()},
        **figures,
        context=CONTEXT,
        vocabulary=VOCABULARY,
        best=best,
        train=facts["train"],
        device=training["device"],
        torch=training["torch"],
        candidates=len(training["candidates"]),
    )


def table_row(name: str, nats_per_token: float, bytes_per_token: float) -> str:
    """Return perplexity, bits per token and bits per byte as a row of the card."""
    bits = nats_per_token / math.log(2)
    return (
        f"| {name} | {math.exp(nats_per_token):.2f} | {bits:.3f} | {bits / bytes_per_token:.3f} |"
    )


if __name__ == "__main__":
    main()
