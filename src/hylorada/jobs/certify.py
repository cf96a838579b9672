"""The station that certifies: the model in a file, measured on a corpus, and bounded.

`Reader.measuring` is the one sequence: read the documents with the adapter on its base, hand over
the losses, give the base back. `hylorada bound` walks it on a model it loads, a study on the model
it keeps, and `hylorada verify` walks it again and compares.
"""

import hashlib
import math
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int64
from peft import set_peft_model_state_dict
from transformers import PretrainedConfig

from hylorada.bounds import INEQUALITIES, Losses, Verification, issue, measured, payment, recompute
from hylorada.bounds.certificate import differs
from hylorada.bounds.statements import GAIN, LOSS
from hylorada.compression.message import Message
from hylorada.errors import SpecError
from hylorada.evaluation.risk import (
    RiskSpec,
    TokenRisks,
    countable_documents,
    drawn_documents,
    scored_lengths,
    token_risks,
)
from hylorada.files import read_record, write_record
from hylorada.identity import source_sha256
from hylorada.jobs.assembly import Workshop, token_store, weights_sha256
from hylorada.jobs.compress import attach, load_adapter, read_message
from hylorada.jobs.evaluate import chosen_device
from hylorada.models.anatomy import device_of
from hylorada.models.pretrained import LoadedModel, load
from hylorada.records.certificates import (
    Certificate,
    CertifiedGain,
    CertifiedRun,
    CertifiedText,
    Code,
    CompressionCost,
    Division,
    MeanLosses,
    MeasuredModel,
    MessageFile,
    Prior,
    RiskEstimate,
)
from hylorada.specs.evaluation import CertificateSpec, CertifySpec
from hylorada.specs.run import RANDOM, DataSection, RunConfig
from hylorada.subspace.core import Subspace
from hylorada.subspace.model import find_subspace
from hylorada.text.tokens import TokenStore, without_end_marks

SOURCE = "hylorada.jobs.certify"
PACKAGES = ("hylorada", "torch", "transformers", "peft", "numpy", "constriction")
CERTIFICATE, SHARDS = "certificate.json", "certificate.json.partial"
Counts = Int64[np.ndarray, " documents"]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "autocast": torch.float32}


# The commands


def certify(file: Path, data: str, out: Path, spec: CertifySpec) -> Certificate:
    """Measure the model in a file on a corpus, write the certificate, and return it.

    Measured losses are kept beside `out` until it is written, so the same command resumes.
    """
    INEQUALITIES[spec.inequality].at(spec.level)  # before anything slow
    message = read_message(file)
    base = load_base(message, spec)
    store = text_of(data, spec, base)
    reader = Reader(file, message, base, weights_sha256(base.model), spec)
    with reader.measuring(store, out.with_name(f"{out.name}.partial")) as losses:
        certificate = reader.certificate(losses, store, data)
        write_record(out, certificate)
    return certificate


def verify(
    path: Path,
    data: str,
    *,
    file: Path | None = None,
    base: str | None = None,
    device: str | None = None,
    progress: bool = True,
) -> Verification:
    """Decode the file of a certificate, measure again, and return whether it is confirmed.

    The compressed adapter is looked for beside the certificate, and the base model where that says,
    unless `file` and `base` tell where they are.
    """
    if not path.is_file():
        raise SpecError(f"a certificate that hylorada bound wrote is needed; got {path}")
    claimed = read_record(path, Certificate, "verify it with the version that wrote it")
    INEQUALITIES[claimed.inequality].at(claimed.level)
    file = file or path.parent / Path(claimed.message.file).name
    message, sha256 = read_message(file), _sha256(file)
    if sha256 != claimed.message.sha256:
        return differs(f"{file.name} is another file (SHA-256 {sha256[:12]}…)")
    bits, counted = claimed.ledger.message_bits, message.counted_bits
    if counted != bits:
        return differs(f"the file costs {counted} bits, the certificate says {bits}")
    text, model = claimed.data, claimed.model
    spec = CertifySpec(
        level=claimed.level,
        split=text.split,
        lines=text.lines,
        samples=text.samples,
        base=base or model.base,
        max_length=model.max_length,
        stride=model.stride,
        dtype=model.dtype,
        device=device,
        seed=text.seed,
        progress=progress,
    )
    loaded = load_base(message, spec)
    weights, store = weights_sha256(loaded.model), text_of(data, spec, loaded)
    for what, found, meant in (
        ("the base model is another one (weights", weights, model.base_sha256),
        ("the text is another one (fingerprint", store.fingerprint, text.fingerprint),
    ):
        if found != meant:
            return differs(f"{what} {found[:12]}…, the certificate is about {meant[:12]}…)")
    with Reader(file, message, loaded, weights, spec).measuring(store) as losses:
        return recompute(claimed, losses)


# The sequence


class Reader:
    """The model that a file stands for, on its base, and how it reads documents."""

    def __init__(
        self, file: Path, message: Message, base: LoadedModel, base_sha256: str, spec: CertifySpec
    ) -> None:
        """Attach the message to its base, which is itself changed until `unload`."""
        self.file, self.message, self.base_sha256, self.spec = file, message, base_sha256, spec
        self.model = attach(message, base)
        kind = "random" if base.source.partition(":")[0] == RANDOM else "pretrained"
        self.prior = Prior(kind=kind, name=base.source)
        self.risk = risk_spec(base.model.config, spec)
        self.device, name = device_of(self.model), torch.cuda.get_device_name
        self.device_name = name(self.device) if self.device.type == "cuda" else "CPU"

    @contextmanager
    def measuring(self, store: TokenStore, shards: Path | None = None) -> Iterator[Losses]:
        """Yield the losses of every document to read, with the model still on its base.

        Random weights predict nothing, so a model grown from them is compared with a uniform
        guess; any other with its frozen self. Afterwards the base is as before, and what was kept
        in `shards` on the way is removed.
        """
        compared = self.prior.kind != "random"
        try:
            risks = self.risks(store, shards, compared=compared, key=_sha256(self.file))
            yield losses_of(risks, store, self.spec)
        finally:
            self.model.unload()
        remove_shards(shards)

    def risks(
        self, store: TokenStore, shards: Path | None, *, compared: bool, key: str
    ) -> TokenRisks:
        """Return bits and ranks of every token to read; see `token_risks` for shards and key."""
        mixed, name = self.spec.dtype == "autocast", self.prior.name
        how = (key, source_sha256(SOURCE), name, self.model.dtype, self.device_name, mixed)
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=mixed):
            return token_risks(
                self.model,
                store,
                documents_to_read(store, self.spec)[0],
                self.risk,
                frozen=self.model if compared else None,
                shards=shards,
                key="/".join(map(str, how)),
            )

    def certificate(self, losses: Losses, store: TokenStore, data: str) -> Certificate:
        """Return the certificate that measured losses support."""
        spec = self.spec
        return issue(
            losses,
            payment(self.message.counted_bits, spec.choices),
            self.prior,
            level=spec.level,
            delta=spec.delta,
            inequality=spec.inequality,
            message=MessageFile(
                file=self.file.name,
                bytes=self.file.stat().st_size,
                sha256=_sha256(self.file),
                configuration_id=self.message.configuration_id,
            ),
            model=MeasuredModel(
                base=self.prior.name,
                base_sha256=self.base_sha256,
                vocabulary=losses.vocabulary,
                max_length=self.risk.max_length,
                stride=self.risk.window_stride,
                dtype=spec.dtype,
                device=self.device_name,
            ),
            data=CertifiedText(
                source=Path(data).name,
                split=spec.split,
                lines=spec.lines,
                fingerprint=store.fingerprint,
                documents=int(countable_documents(store).size),
                tokens=int(scored_lengths(store).sum()),
                documents_read=int(losses.lengths.size),
                tokens_read=int(losses.lengths.sum()),
                samples=spec.samples,
                seed=spec.seed,
            ),
            code=Code(
                packages={name: version(name) for name in PACKAGES}, sha256=source_sha256(SOURCE)
            ),
        )


def load_base(message: Message, spec: CertifySpec) -> LoadedModel:
    """Return the base model that a message names, or the one that is named for it."""
    base = spec.base or message.configuration["adapter"].get("base_model_name_or_path")
    if not base:
        raise SpecError("the file does not name its base model; give it with --model")
    return load(str(base), dtype=DTYPES[spec.dtype], device=chosen_device(spec.device))


def text_of(data: str, spec: CertifySpec, base: LoadedModel) -> TokenStore:
    """Return the tokens of the split that is certified, without marks between documents."""
    section = DataSection(source=data, lines=spec.lines)
    store = token_store(section, spec.split, base.tokenizer, spec.progress)
    return without_end_marks(store, base.tokenizer.eos_token_id)


def risk_spec(config: PretrainedConfig, spec: CertifySpec) -> RiskSpec:
    """Return how a model of this configuration reads documents."""
    longest = RiskSpec().max_length
    own = getattr(config, "max_position_embeddings", None) or longest
    length = spec.max_length or min(own, longest)
    return RiskSpec(max_length=length, stride=spec.stride, progress=spec.progress)


def documents_to_read(store: TokenStore, spec: CertifySpec) -> tuple[Counts, Counts | None]:
    """Return all documents, those at the beginning, or draws and how often each was drawn."""
    if spec.samples is None or spec.level == "token":  # the beginning of a text is a text
        return countable_documents(store)[: spec.samples], None
    return drawn_documents(store, spec.samples, spec.seed)


def losses_of(risks: TokenRisks, store: TokenStore, spec: CertifySpec) -> Losses:
    """Return measured losses in the form that bounds read."""
    documents, draws = documents_to_read(store, spec)
    population = documents if spec.level == "token" else countable_documents(store)
    tokens = np.diff(np.asarray(store.offsets))[risks.documents]
    counts = np.asarray(store.byte_counts)[risks.documents]
    return Losses(
        adapted=risks.adapted,
        frozen=risks.frozen,
        ranks=risks.ranks,
        lengths=risks.lengths,
        corpus_lengths=scored_lengths(store)[population],
        draws=draws,
        vocabulary=risks.vocabulary,
        # A document's bytes are spread over its tokens, of which all but the first are scored.
        byte_count=float((counts * (tokens - 1) / tokens).sum()),
    )


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def remove_shards(shards: Path | None) -> None:
    """Remove what was kept while a certificate was measured."""
    if shards is not None and shards.is_dir():
        for path in shards.glob("*.npz"):
            path.unlink()
        shards.rmdir()


# The runs of a study


def certify_run(
    folder: Path,
    file: str,
    config: RunConfig,
    spec: CertificateSpec,
    cost: CompressionCost,
    workshop: Workshop,
) -> CertifiedRun:
    """Certify the compressed adapter of a run in its folder, and return the record of both.

    The adapter as it was trained is read on the same documents: what did quantisation cost?
    """
    base, store = workshop.model(config), workshop.text(config, "train", certified=True)
    fewer = countable_documents(store).size > spec.documents
    how = CertifySpec(
        lines=config.data.lines,
        samples=spec.documents if fewer else None,
        delta=spec.delta,
        choices=spec.choices,
        max_length=config.data.length,
        dtype=config.training.precision,
        seed=spec.seed,
        progress=False,
    )
    path, sha256 = folder / file, workshop.weights(config)
    reader = Reader(path, read_message(path), base, sha256, how)
    with reader.measuring(store, folder / SHARDS) as losses:
        certificate = reader.certificate(losses, store, config.data.source)
        subspace = find_subspace(reader.model)
        assert subspace is not None, "only SubLoRA adapters are compressed"
        quantised, before = list(subspace.shares().values()), folder / f"{SHARDS}-before"
        set_peft_model_state_dict(reader.model, load_adapter(str(folder)).state())
        risks = reader.risks(store, before, compared=False, key=f"{folder.name}/before")
        trained = measured(losses_of(risks, store, how)).adapted
        write_record(folder / CERTIFICATE, certificate)
    remove_shards(before)
    return _record(certificate, cost, trained, _division(subspace, quantised))


def _division(subspace: Subspace, quantised: list[float]) -> Division:
    """Return how a subspace divides its coordinates, and its gates as the file holds them."""
    allocation, shares = subspace.allocation, subspace.shares()
    sizes, settings = list(allocation.slices.values()), allocation.settings
    if shares:
        of_b = sum(g * d for g, d in zip(shares.values(), sizes, strict=True)) / sum(sizes)
    elif settings.allocation_mode == "fixed":
        of_b = settings.split()[1] / settings.intrinsic_dim
    else:  # every coordinate moves both; B has its share of the parameters
        of_b = 1 - allocation.a_size / allocation.full
    return Division(
        share_of_b=of_b,
        layers=list(shares),
        slices=sizes,
        gamma=list(shares.values()),
        gamma_quantised=quantised,
    )


def _record(
    certificate: Certificate, cost: CompressionCost, unquantised: MeanLosses, division: Division
) -> CertifiedRun:
    stated = {one.name: one for one in certificate.statements}
    bound, gain = stated[LOSS], stated.get(GAIN)
    read = certificate.data.samples or certificate.data.documents_read
    risk, before = (
        RiskEstimate(
            value=means.bits_per_token_over_documents,
            standard_error=means.standard_deviation_over_documents / math.sqrt(max(1, read)),
        )
        for means in (certificate.measured.adapted, unquantised)
    )
    return CertifiedRun(
        file=certificate.message.file,
        certificate=CERTIFICATE,
        sentence=certificate.sentence,
        bits=cost.counted_bits,
        paid_bits=certificate.ledger.bits,
        file_bytes=cost.file_bytes,
        compression=cost,
        risk=risk,
        risk_unquantised=before,
        bound=bound.bound,
        vacuous=bound.vacuous,
        complexity=bound.bound - risk.value,
        gain=None if gain is None else CertifiedGain(bound=gain.bound, measured=gain.measured),
        documents=read,
        population=certificate.data.documents,
        delta=certificate.delta,
        allocation=division,
    )
