"""Certify compressed adapters on a GPU, beside the published procedure on the same weights.

    python benchmarks/certificates.py certify --model smollm2 --data FOLDER --out FOLDER
        --files a.hyl b.hyl --published a_uniform11.hyl [--dtype bfloat16]
    python benchmarks/certificates.py curve --out FOLDER
    python benchmarks/certificates.py speed --out FOLDER

`certify`: the frozen model reads the training split once, each adapted one once; every file gets a
document-level and a token-level certificate and its held-out losses on the test split, and
certificates.json holds the curve over files and what each inequality makes of the same losses.
The published procedure takes an 11-level uniform file, 10,000 documents drawn with replacement,
Hoeffding's inequality and the best of eight smoothing values (Lotfi et al. 2024).
`curve`: draws certified and measured gains of certificates.json over the length of the message.
`speed`: 10,000 documents of 1,100 tokens with a GPT-2 small, beside a bare forward pass.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from certificate_figure import draw_curve
from peft import PeftModel

from hylorada.bounds import (
    Evidence,
    Ledger,
    betting,
    empirical_bernstein,
    finite_hypothesis,
    loss_range,
    mixture_bits,
    relative_gain,
    subsampled,
    supermartingale_bernstein,
)
from hylorada.bounds.levels import level_of
from hylorada.evaluation.risk import (
    RiskSpec,
    TokenRisks,
    countable_documents,
    drawn_documents,
    token_risks,
)
from hylorada.evaluation.stretches import stretches
from hylorada.experiments.certify import certificate_of
from hylorada.experiments.compress import describe, read_message
from hylorada.experiments.measuring import (
    DTYPES,
    CertifySpec,
    Decoded,
    attach,
    evidence_of,
    read_risks,
    reading_of,
    risk_spec,
    text_of,
    weights_sha256,
)
from hylorada.models.pretrained import LoadedModel, load
from hylorada.text.store import TokenStore
from hylorada.units import Bits, Nats, nats_from_bits

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SMOOTHING = (1e-4, 1e-3, 5e-3, 0.01, 0.05, 0.1, 0.25, 0.5)
PUBLISHED_DRAWS = 10_000
PUBLISHED_EXTRA_BITS = 7 + 3  # configuration, and one of eight smoothing values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("job", choices=("certify", "held_out", "curve", "speed"))
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--data")
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--files", nargs="+", type=Path, default=[])
    parser.add_argument("--published", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tried", type=int, default=1, help="Configurations compared by looking.")
    parser.add_argument("--documents", type=int, default=600, help="Read by held_out.")
    chosen = parser.parse_args()
    chosen.out.mkdir(parents=True, exist_ok=True)
    if chosen.job == "curve":
        draw_curve(chosen.out)
        return
    jobs = {
        "certify": ("certificates", certify_all),
        "held_out": ("held_out", confirm),
        "speed": ("certificate_speed", lambda chosen: iter([measure_speed()])),
    }
    name, job = jobs[chosen.job]
    results = job(chosen)
    for result in results:  # one more file each time
        (chosen.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")


def certify_all(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    tried = {"configuration": chosen.tried} if chosen.tried > 1 else {}
    spec = CertifySpec(dtype=chosen.dtype, device=DEVICE, choices=tried, progress=False)
    loaded = load(chosen.model, dtype=DTYPES[chosen.dtype], device=DEVICE)
    sha256 = weights_sha256(loaded.model)
    stores = {
        split: text_of(chosen.data, replace(spec, split=split), loaded.tokenizer)
        for split in ("train", "test")
    }
    risk = risk_spec(loaded.model.config, spec)
    frozen = {split: timed_pass(loaded.model, store, risk) for split, store in stores.items()}
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "CPU",
        "protocol": __doc__,
        "model": chosen.model,
        "documents": len(stores["train"]),
        "tokens": len(stores["train"].tokens),
        "frozen_seconds": frozen["train"][1],
        "files": [],
    }
    for file in chosen.files:
        decoded = attach(read_message(file), loaded, spec, sha256)
        adapted = {split: timed_pass(decoded.model, store, risk) for split, store in stores.items()}
        entry = certified(file, decoded, stores, frozen, adapted, spec, chosen.out, chosen.data)
        decoded.model.unload()
        result["files"].append(entry)
        print(json.dumps({key: entry[key] for key in ("file", "bits", "document", "token")}))
        yield result
    if chosen.published is not None:
        result["published"] = published(chosen.published, loaded, stores["train"], spec, result)
        print(json.dumps(result["published"]))
        yield result


def timed_pass(
    model: torch.nn.Module, store: TokenStore, risk: RiskSpec
) -> tuple[TokenRisks, float]:
    start = time.perf_counter()
    risks = token_risks(model, store, countable_documents(store), risk)
    return risks, time.perf_counter() - start


def certified(
    file: Path,
    decoded: Decoded,
    stores: dict[str, TokenStore],
    frozen: dict[str, tuple[TokenRisks, float]],
    adapted: dict[str, tuple[TokenRisks, float]],
    spec: CertifySpec,
    out: Path,
    data: str,
) -> dict[str, Any]:
    """Write both certificates of a file and return its line of the curve."""
    message = read_message(file)
    entry: dict[str, Any] = {
        "file": file.name,
        "bits": message.counted_bits,
        "dim": len(message.quantised.symbols),
        "levels": message.quantised.codebook.levels,
        "seconds": adapted["train"][1],
    }
    compared = decoded.prior.kind == "pretrained"
    evidence = {
        split: evidence_of(
            replace(adapted[split][0], frozen=frozen[split][0].adapted if compared else None),
            stores[split],
            reading_of(stores[split], spec),
        )
        for split in stores
    }
    for level in ("document", "token"):
        certificate = certificate_of(
            file,
            decoded,
            stores["train"],
            evidence["train"],
            replace(spec, level=level),
            data,
        )
        path = out / f"{file.stem}.{level}.json"
        path.write_text(certificate.to_json())
        entry[level] = {
            one.name: {"bound": one.bound, "measured": one.measured, **one.settings}
            for one in certificate.statements
        }
        entry[level]["held_out"] = held_out(
            evidence["test"], level, certificate.headline.settings["weight"]
        )
    if compared:
        ledger = Ledger(message_bits=message.counted_bits, choices=spec.paid())
        entry["inequalities"] = inequalities(evidence["train"], ledger.complexity)
    return entry


def held_out(evidence: Evidence, level: str, weight: float) -> dict[str, float]:
    """Return the losses, and the gain of the certified mixture, on documents nobody trained on."""
    at = level_of(level, evidence)
    adapted = at.bits(evidence.adapted)
    if evidence.frozen is None:
        return {"loss": at.mean(mixture_bits(adapted, at.uniform_bits(), weight))}
    frozen = at.bits(evidence.frozen)
    return {
        "gain": at.mean(frozen - mixture_bits(adapted, frozen, weight)),
        "frozen_loss": at.mean(frozen),
        "adapted_loss": at.mean(adapted),
    }


def confirm(chosen: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Read some test documents with every certified file; its certificates lie in `out`."""
    spec = CertifySpec(dtype=chosen.dtype, device=DEVICE, split="test", progress=False)
    loaded = load(chosen.model, dtype=DTYPES[chosen.dtype], device=DEVICE)
    store = text_of(chosen.data, spec, loaded.tokenizer)
    documents = countable_documents(store)[: chosen.documents]
    reading = replace(reading_of(store, spec), documents=documents)
    result: dict[str, Any] = {"dtype": chosen.dtype, "documents": documents.size, "files": {}}
    for file in chosen.files:
        decoded = attach(read_message(file), loaded, spec, "")
        evidence = evidence_of(read_risks(decoded, store, reading, compared=True), store, reading)
        decoded.model.unload()
        found: dict[str, Any] = {"tokens": int(evidence.lengths.sum())}
        for level in ("document", "token"):
            certificate = json.loads((chosen.out / f"{file.stem}.{level}.json").read_text())
            gain = next(one for one in certificate["statements"] if one["name"] == "gain")
            found[level] = held_out(evidence, level, gain["settings"]["weight"])
            found[level]["certified_gain"] = gain["bound"]
        each = evidence.of_documents(evidence.frozen - evidence.adapted) / evidence.lengths
        found["standard_error_of_gain"] = float(each.std(ddof=1) / np.sqrt(each.size))
        result["files"][file.name] = found
        print(json.dumps(found), flush=True)
        yield result
    if chosen.published is not None:
        train = text_of(chosen.data, replace(spec, split="train"), loaded.tokenizer)
        result["published"] = estimated_published(chosen, loaded, train, spec)
        print(json.dumps(result["published"]), flush=True)
        yield result


def estimated_published(
    chosen: argparse.Namespace, loaded: LoadedModel, store: TokenStore, spec: CertifySpec
) -> dict[str, Any]:
    """Return the published bound as 10,000 draws would give it, its risk estimated from fewer."""
    message = read_message(chosen.published)
    decoded = attach(message, loaded, spec, "")
    documents, draws = drawn_documents(store, chosen.documents, seed=0)
    risks = token_risks(decoded.model, store, documents, decoded.risk)
    decoded.model.unload()
    found = published_bound(
        risks,
        draws,
        population=countable_documents(store).size,
        code_bits=float(describe(message)["published_estimate_bits"]),
        sample=PUBLISHED_DRAWS,
    )
    certificate = json.loads((chosen.out / f"{chosen.files[0].stem}.document.json").read_text())
    ours = next(one for one in certificate["statements"] if one["name"] == "loss")["bound"]
    gap = found["bound"] - found["risk"]
    closed = (found["bound"] - ours) / gap
    return found | {
        "file": chosen.published.name,
        "risk_estimated_from": int(draws.sum()),
        "our_bound": ours,
        "share_of_the_gap_closed": closed,
    }


def inequalities(evidence: Evidence, complexity: Nats) -> dict[str, float]:
    """Return what each inequality certifies as gain on unseen documents, in bits per token.

    The first three bound the mixture with equal weights at every token, between -1 and 1 bit.
    """
    assert evidence.frozen is not None
    mixed = mixture_bits(evidence.adapted, evidence.frozen, 0.5)
    tokens = (mixed - evidence.frozen).astype(np.float64)
    each = np.clip(evidence.of_documents(tokens) / evidence.lengths, -1.0, 1.0)
    whole = relative_gain(
        evidence.of_documents(evidence.adapted),
        evidence.of_documents(evidence.frozen),
        evidence.lengths,
        complexity,
    )
    return {
        "measured, mixture of tokens": -float(each.mean()),
        "Hoeffding": -finite_hypothesis(float(each.mean()), complexity, each.size, 2.0),
        "empirical Bernstein": -empirical_bernstein(each, complexity, 2.0),
        "supermartingale": -supermartingale_bernstein(each, complexity, lower=-1.0, upper=1.0),
        "bet": -betting(each, complexity, upper=1.0),
        "bet on a mixture of documents": whole.certified,
    }


def published(
    file: Path, loaded: LoadedModel, store: TokenStore, spec: CertifySpec, result: dict[str, Any]
) -> dict[str, Any]:
    """Return the published bound of a uniform file, and how much of its gap ours closes."""
    message = read_message(file)
    bits = float(describe(message)["published_estimate_bits"])
    decoded = attach(message, loaded, spec, "")
    documents, draws = drawn_documents(store, PUBLISHED_DRAWS, seed=0)
    risks = token_risks(decoded.model, store, documents, decoded.risk)
    decoded.model.unload()
    found = published_bound(
        risks, draws, population=countable_documents(store).size, code_bits=bits
    )
    ours = min((entry["document"]["loss"] for entry in result["files"]), key=lambda e: e["bound"])
    gap = found["bound"] - found["risk"]
    return {
        "file": file.name,
        "bits": bits,
        **found,
        "our_bound": ours["bound"],
        "our_risk": ours["measured"],
        "share_of_the_gap_closed": (found["bound"] - ours["bound"]) / gap,
    }


def published_bound(
    risks: TokenRisks,
    draws: np.ndarray,
    *,
    population: int,
    code_bits: float,
    sample: int | None = None,
) -> dict[str, float]:
    """Return the best of the published bounds over smoothing values, with its empirical risk."""
    complexity = nats_from_bits(Bits(code_bits + PUBLISHED_EXTRA_BITS))
    starts = np.cumsum(risks.lengths) - risks.lengths
    found = []
    for alpha in SMOOTHING:
        share = (1 - alpha) * np.exp2(-risks.adapted.astype(np.float64))
        bits = -np.log2(share + alpha / risks.vocabulary)
        each = np.repeat(np.add.reduceat(bits, starts) / risks.lengths, draws)
        bound = subsampled(
            float(each.mean()),
            complexity,
            population,
            sample or int(draws.sum()),
            loss_range(alpha, risks.vocabulary),
        )
        found.append({"bound": bound, "risk": float(each.mean()), "alpha": alpha})
    return min(found, key=lambda one: one["bound"])


def measure_speed(
    count: int = 10_000, length: int = 1_100, loaded: LoadedModel | None = None
) -> dict[str, Any]:
    """Time two readings of long documents beside a bare forward pass, and compare every loss."""
    if loaded is None:
        loaded = load("random:gpt2-small", dtype=DTYPES["bfloat16"], device=DEVICE)
    vocabulary = len(loaded.tokenizer)
    tokens = np.random.default_rng(0).integers(0, vocabulary, count * length).astype(np.uint16)
    store = TokenStore(
        tokens=tokens,
        offsets=np.arange(count + 1) * length,
        byte_counts=np.full(count, 4 * length),
        fingerprint="speed",
    )
    documents = countable_documents(store)
    spec = RiskSpec(max_length=min(1024, loaded.model.config.max_position_embeddings))
    rows = stretches(store, documents, max_length=spec.max_length, stride=spec.window_stride)
    batches = [batch.padded(store)[0] for batch in rows.part(0, 640).batches(2**16)]
    token_risks(loaded.model, store, documents[:200], spec)  # warm
    seconds, risks = [], []
    for _ in range(2):
        start = time.perf_counter()
        risks.append(token_risks(loaded.model, store, documents, spec))
        seconds.append(time.perf_counter() - start)
    read = int(rows.lengths.sum()) / min(seconds)
    bare = bare_forward(loaded.model, batches)
    return {
        "documents": count,
        "tokens_each": length,
        "seconds": seconds,
        "identical": all(
            np.array_equal(getattr(risks[0], name), getattr(risks[1], name))
            for name in ("adapted", "ranks")
        ),
        "tokens_read_per_second": read,
        "bare_forward_tokens_per_second": bare,
        "share_of_bare_forward": read / bare,
    }


@torch.no_grad()
def bare_forward(model: PeftModel | torch.nn.Module, batches: list[torch.Tensor]) -> float:
    """Return the tokens per second of the model's own forward, in rows that fit its logits."""
    pieces = [piece.to(DEVICE) for batch in batches for piece in batch.split(16)]
    rates = []
    for _ in range(3):
        synchronise()
        start = time.perf_counter()
        for piece in pieces:
            model(input_ids=piece, use_cache=False)
        synchronise()
        elapsed = time.perf_counter() - start
        rates.append(sum(piece.numel() for piece in pieces) / elapsed)
    return max(rates)


def synchronise() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
