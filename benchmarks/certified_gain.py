"""Train, quantise and certify SubLoRA adapters of a pretrained model on one GPU, in one command.

    python benchmarks/certified_gain.py --model MODEL --data FOLDER --out FOLDER --work FOLDER

Stages, the most important first; what FOLDER already holds is not made again:
`document` and `token` train a vector of the dimension that suits the level, quantise it while it
trains on, compress it, and certify the file at both levels on the whole training split, with its
held-out losses; `published` runs the published procedure on the same vector; `curve` trains shorter
vectors of several dimensions, quantises each in several ways and projects what every inequality
would certify from some documents to all of them; `gpt2` pretrains GPT-2 small from its random start
in a subspace and certifies it; `speed` times the reading of long documents; `figure` draws.

`--budget-seconds` starts no stage after that time: the same command goes on where it stopped.
"""

import argparse
import hashlib
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import transformers
from certificate_figure import draw_curve
from certificates import certified, published
from gain_study import LEVELS, Study, say
from projected_gain import projected_gain, projected_inequalities
from reading_speed import time_reading
from vectors import Trainee, quick_candidates

from hylorada.bounds import Losses, payment
from hylorada.compression import Message, Quantised
from hylorada.compression.quantise import quantise
from hylorada.evaluation.risk import countable_documents
from hylorada.files import write_record
from hylorada.jobs.assembly import weights_sha256
from hylorada.jobs.certify import DTYPES, Reader, losses_of, risk_spec
from hylorada.jobs.compress import compress, load_adapter, read_message
from hylorada.specs.evaluation import CompressionSpec
from hylorada.subspace.config import SubLoRAConfig

STAGES = (*LEVELS, "published", "curve", "gpt2", "speed", "figure")
PROJECTED = "projected from {count:,} documents"


def train_and_certify(study: Study, level: str) -> None:
    chosen = study.chosen
    file = chosen.out / f"{level}.hyl"
    if not file.is_file():
        train_and_compress(study, level, file)
    frozen = study.frozen()
    base = study.loaded()
    reader = Reader(file, read_message(file), base, study.base_sha256, study.spec())
    key = f"{level}-{message_key(file)}"
    adapted = {split: study.read(key, reader.model, split) for split in study.stores()}
    reader.model.unload()
    say(f"{level}: read everything in {adapted['train'][1]:.1f} s")

    def certify() -> None:
        entry = certified(reader, study.stores(), frozen, adapted, chosen.out, chosen.data)
        study.result["files"].append({"stage": level, **entry})
        study.write()
        say(json.dumps({key: entry[key] for key in ("file", "bits", *LEVELS)}))

    # Numbers of a whole corpus take some seconds, in which the GPU can go on.
    study.waiting.append(study.workers.submit(certify))


def train_and_compress(study: Study, level: str, file: Path) -> None:
    """Write the vector as it was quantised in training, and as the published procedure would."""
    chosen, dim = study.chosen, study.dims()[level]
    trained, finished = (chosen.work / f"{level}_{part}" for part in ("trained", "finished"))
    if not finished.is_dir():
        trainee = study.trainee()  # compiled while the text is being tokenised
        store = study.stores()["train"]
        if not trained.is_dir():
            trainee.fit(store, dim, study.schedule(chosen.tokens))
            study.result["rate"] = trainee.rate
            trainee.save(trained)
            say(f"{level}: trained {dim:,} coordinates")
        trainee.start(dim, load_adapter(str(trained)).vector)
        found = trainee.finish(store, study.finish(level, chosen.tokens))
        trainee.save(finished)
        say(f"{level}: quantised while training, {message_bits(found):,} bits")
    uniform = CompressionSpec(method="uniform", levels=11)
    compress(str(trained), chosen.out / f"{level}_uniform11.hyl", uniform)
    compress(str(finished), file, CompressionSpec())


def message_bits(quantised: Quantised) -> int:
    return Message(configuration={}, quantised=quantised).counted_bits


def message_key(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:12]


def compare_with_published(study: Study) -> None:
    study.wait()
    file = study.chosen.out / "document_uniform11.hyl"
    study.result["published"] = published(
        file, study.loaded(), study.stores()["train"], study.spec(), study.result
    )
    say(json.dumps(study.result["published"]))


def draw_trade_offs(study: Study) -> None:
    """Measure shorter trainings on some documents, and project them to all."""
    chosen = study.chosen
    points: list[dict[str, Any]] = study.result.setdefault("points", [])
    done = {point["dim"] for point in points}
    store = study.stores()["train"]
    sample = countable_documents(store)[: chosen.curve_documents]
    for dim in chosen.curve_dims:
        if dim in done or study.is_late():
            continue
        trainee = study.trainee()
        trainee.fit(store, dim, study.schedule(chosen.curve_tokens))
        vector = trainee.vector()
        for way, found in quantised_in_ways(study, vector):
            trainee.start(dim, found.values)
            losses = losses_on(study, trainee, sample)
            points.append({"dim": dim, "way": way, **projected(study, found, losses)})
            say(json.dumps(points[-1]))
        study.write()


def quantised_in_ways(study: Study, vector: np.ndarray) -> Iterator[tuple[str, Quantised]]:
    """Yield the vector by rounding at several distortions, as published, and by training on."""
    found = quick_candidates(vector)
    for share in study.chosen.distortions:
        near = min(found, key=lambda one: abs(one.distortion - share))
        yield f"{share:.0%} lost", near.quantised
    yield "uniform, 11 levels", quantise(vector, CompressionSpec(method="uniform", levels=11))
    trainee = study.trainee()
    trainee.start(len(vector), vector)
    finish = study.finish("document", study.chosen.curve_tokens)
    yield "trained on", trainee.finish(study.stores()["train"], finish)


def losses_on(study: Study, trainee: Trainee, sample: np.ndarray) -> Losses:
    """Return the losses of some documents, beside those that the frozen model has read."""
    store = study.stores()["train"]
    risk = risk_spec(study.loaded().model.config, study.spec())
    risks = trainee.read(store, sample, risk)
    frozen = study.frozen()["train"][0].adapted[: int(risks.lengths.sum())]
    return losses_of(replace(risks, frozen=frozen), store, study.spec())


def projected(study: Study, found: Quantised, losses: Losses) -> dict[str, Any]:
    bits = message_bits(found)
    paid = payment(bits, study.spec().choices)
    return {
        "bits": bits,
        "levels": found.codebook.levels,
        "kind": PROJECTED.format(count=losses.lengths.size),
        **{level: projected_gain(losses, paid, level) for level in LEVELS},
        "inequalities": projected_inequalities(losses, paid),
    }


def pretrain_gpt2(study: Study) -> None:
    """Train GPT-2 small from its seed in a subspace, and bound its loss from drawn documents."""
    chosen, file = study.chosen, study.chosen.out / "gpt2.hyl"
    spec = study.spec(samples=chosen.gpt2_documents)
    spec = replace(spec, choices={})  # nothing was compared here
    base = study.gpt2()
    config = SubLoRAConfig(
        target_modules=["c_attn", "lm_head"],
        fused_parts="qv",
        intrinsic_dim=chosen.gpt2_dim,
        task_type="CAUSAL_LM",
    )
    store = study.stores()["train"]
    trainee = Trainee(base, config, batch_tokens=chosen.batch_tokens, say=say)
    trainee.fit(store, chosen.gpt2_dim, study.schedule(chosen.gpt2_tokens))
    trainee.save(chosen.work / "gpt2")
    trainee.model.unload()
    found = compress(str(chosen.work / "gpt2"), file, CompressionSpec(distortion=0.1))
    reader = Reader(file, read_message(file), base, weights_sha256(base.model), spec)
    with reader.measuring(store) as losses:
        certificate = reader.certificate(losses, store, chosen.data)
    write_record(chosen.out / "gpt2.document.json", certificate)
    study.result["gpt2"] = {
        "bits": found.counted_bits,
        "dim": chosen.gpt2_dim,
        "log2_vocabulary": float(np.log2(losses.vocabulary)),
        "statements": {
            one.name: {"bound": one.bound, "measured": one.measured}
            for one in certificate.statements
        },
    }
    say(json.dumps(study.result["gpt2"]))


def measure_speed(study: Study) -> None:
    count, length = study.chosen.speed
    study.result["speed"] = time_reading(count, length, study.gpt2())
    say(json.dumps(study.result["speed"]))


def draw(study: Study) -> None:
    study.wait()
    draw_curve(study.chosen.out)


def is_done(study: Study, stage: str) -> bool:
    if stage in LEVELS:
        return any(entry["stage"] == stage for entry in study.result["files"])
    if stage == "curve":
        dims = {point["dim"] for point in study.result.get("points", [])}
        return dims >= set(study.chosen.curve_dims)
    return stage in study.result


def run(study: Study, stage: str) -> None:
    if stage in LEVELS:
        train_and_certify(study, stage)
    else:
        {
            "published": compare_with_published,
            "curve": draw_trade_offs,
            "gpt2": pretrain_gpt2,
            "speed": measure_speed,
            "figure": draw,
        }[stage](study)


def main() -> None:
    chosen = arguments()
    chosen.work.mkdir(parents=True, exist_ok=True)
    transformers.utils.logging.disable_progress_bar()
    study = Study(chosen, __doc__)
    if chosen.stages == ["tokens"]:
        study.stores()
        return
    study.start_tokenising()
    for stage in chosen.stages:
        if is_done(study, stage):
            continue
        if study.is_late() and stage != "figure":
            say(f"no time left for {stage}; the same command goes on there")
            continue
        say(f"{stage} begins")
        start = time.perf_counter()
        run(study, stage)
        study.result["seconds"][stage] = time.perf_counter() - start
        study.write()
    study.wait()
    study.write()
    say("done")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", required=True, help="A folder, or smollm2.")
    parser.add_argument("--base-name", default="smollm2", help="What files call the model.")
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True, type=Path, help="Small files to keep.")
    parser.add_argument("--work", required=True, type=Path, help="Large files on the way.")
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=(*STAGES, "tokens"))
    parser.add_argument("--budget-seconds", type=float, default=1e9)
    parser.add_argument("--dtype", default="bfloat16", choices=tuple(DTYPES))
    parser.add_argument("--compile", default="inductor", help="A backend, or none.")
    parser.add_argument(
        "--compile-reading",
        action="store_true",
        help="Read faster, with other roundings of bfloat16 than `hylorada verify` has.",
    )
    parser.add_argument("--seed", type=int, default=0)
    projections = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    parser.add_argument("--targets", nargs="+", default=list(projections))
    parser.add_argument("--rank", type=int, default=4)
    parser.add_argument("--alpha", type=float, default=8.0)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.01, 0.03, 0.1])
    parser.add_argument("--document-dim", type=int, default=20_000)
    parser.add_argument("--token-dim", type=int, default=60_000)
    parser.add_argument("--tokens", type=int, default=16_000_000)
    parser.add_argument("--finish-share", type=float, default=0.15)
    parser.add_argument("--batch-tokens", type=int, default=2**15)
    parser.add_argument("--price-documents", type=int, default=2_000)
    parser.add_argument(
        "--curve-dims", nargs="*", type=int, default=[2_000, 5_000, 12_000, 20_000, 50_000]
    )
    parser.add_argument("--curve-tokens", type=int, default=3_000_000)
    parser.add_argument("--curve-documents", type=int, default=6_000)
    parser.add_argument("--distortions", nargs="*", type=float, default=[0.03, 0.1])
    parser.add_argument("--gpt2-shape", default="gpt2-small")
    parser.add_argument("--gpt2-dim", type=int, default=20_000)
    parser.add_argument("--gpt2-tokens", type=int, default=8_000_000)
    parser.add_argument("--gpt2-documents", type=int, default=10_000)
    parser.add_argument("--speed", nargs=2, type=int, default=[10_000, 1_100])
    return parser.parse_args()


if __name__ == "__main__":
    main()
