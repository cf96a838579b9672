"""Train SubLoRA vectors of any dimension with one model that is compiled once."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from certificates import DEVICE
from peft import get_peft_model
from projected_gain import price_of_a_bit
from torch import Tensor, nn

from hylorada.bounds import Losses
from hylorada.compression import Candidate, Quantised, QuantizingWrapper, candidates
from hylorada.compression.quantise import PRICES, STEPS
from hylorada.evaluation.risk import (
    RiskSpec,
    Stretches,
    TokenRisks,
    countable_documents,
    stretches,
    token_risks,
)
from hylorada.jobs.certify import losses_of
from hylorada.jobs.quantise import FEWEST_LEVELS, STEPS_AT_ONCE, STEPS_GONE
from hylorada.models.pretrained import LoadedModel
from hylorada.seeds import generator
from hylorada.specs.evaluation import CertifySpec
from hylorada.subspace.allocation import layer_stacks
from hylorada.subspace.config import SubLoRAConfig
from hylorada.text.batches import IGNORED
from hylorada.text.tokens import TokenStore
from hylorada.training.loss import chunked_loss

PILOT_STEPS = 32
MOST_RATES = 6
LONGER = 0.5  # of the best rate of a short training: a long one has more steps to get there
WARM_UP = 0.05
LOGGED = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """How long a vector trains; with several rates, short trainings choose one."""

    tokens: int
    rates: tuple[float, ...]
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """How a trained vector is quantised while it trains on.

    Attributes:
        level: The certificate whose price of a bit is paid.
        documents: How many documents tell that price.
        risk: How they are read.
    """

    schedule: Schedule
    level: str
    documents: int
    risk: RiskSpec


class Trainee:
    """A frozen model and the vector that moves it, which can be replaced by one of another size.

    Documents are read as certificates read them: each from its own first token, in batches of
    similar length, so attention needs no mask.
    """

    def __init__(
        self,
        base: LoadedModel,
        config: SubLoRAConfig,
        *,
        batch_tokens: int,
        say: Callable[[str], None],
    ) -> None:
        self.model = get_peft_model(base.model, config)
        self.model.peft_config["default"].base_model_name_or_path = base.source
        self.batch_tokens = batch_tokens
        self.say = say
        self.chunk = 256 if DEVICE == "cpu" else 8_192
        self.compiled = False
        self.rate: float | None = None
        self._rows: dict[str, list[Stretches]] = {}

    @property
    def tuner(self) -> Any:
        """Return what PEFT wraps the model in."""
        return self.model.base_model

    def compile(self, backend: str) -> None:
        """Compile the blocks, one graph for all of them and all shapes, and the loss."""
        # The first block's input would have no gradient, and so a graph of its own.
        self.tuner.model.enable_input_require_grads()
        for block in blocks_of(self.tuner.model):
            block.compile(backend=backend, dynamic=True)
        self.compiled = True

    def warm(self) -> None:
        """Compile with two shapes of nonsense."""
        self.model.train()
        with self._loss_in_chunks():
            for width in (200, 144):
                rows = max(2, self.batch_tokens // width)
                tokens = torch.randint(100, (rows, width), device=DEVICE)
                self.model(input_ids=tokens, labels=tokens).loss.backward()
        self.model.zero_grad()

    def start(self, dim: int, vector: np.ndarray | None = None) -> None:
        """Put a vector of this dimension in the place of the last one, zero unless given."""
        if len(self.tuner.subspace().vector) != dim:
            config = self.tuner.peft_config["default"]
            config.intrinsic_dim, config.fingerprint = dim, None
            self.tuner._add_state("default")
        with torch.no_grad():
            held = self.tuner.subspace().vector
            held.copy_(torch.zeros(dim) if vector is None else torch.from_numpy(vector))

    def vector(self) -> np.ndarray:
        """Return a copy of the vector."""
        found: np.ndarray = self.tuner.subspace().vector.detach().cpu().numpy().copy()
        return found

    def save(self, folder: Path) -> None:
        """Write the adapter as PEFT stores it."""
        self.model.save_pretrained(str(folder), save_embedding_layers=False)

    def fit(self, store: TokenStore, dim: int, schedule: Schedule) -> None:
        """Train a new vector at the best of the rates, which the first vector finds for all."""
        batches = self._batches(store, schedule)
        if self.rate is None:
            best = self._best_rate(batches[:PILOT_STEPS], dim, schedule.rates)
            self.rate = best if len(schedule.rates) == 1 else LONGER * best
        self.start(dim)
        self._train(batches, self.rate)

    def _best_rate(self, pilot: list[Stretches], dim: int, rates: Sequence[float]) -> float:
        """Return the rate of the best short training; rates beyond the ends are tried too."""
        if len(rates) == 1:
            return rates[0]
        losses: dict[float, float] = {}
        tried = list(rates)
        while tried:
            rate = tried.pop(0)
            self.start(dim)
            found = self._train(pilot, rate)
            losses[rate] = found if math.isfinite(found) else math.inf
            best = min(losses, key=lambda one: losses[one])
            if not tried and 1 < len(losses) < MOST_RATES and best in (min(losses), max(losses)):
                tried.append(best / 3 if best == min(losses) else best * 3)
        self.say(f"d = {dim:,}: rate {best:g} of {losses}")
        return best

    def finish(self, store: TokenStore, finish: Finish) -> Quantised:
        """Quantise the vector, train on with the price of a bit, and leave quantised values."""
        sample = countable_documents(store)[: finish.documents]
        losses = self.compared(store, sample, finish.risk)
        found = quick_candidates(self.vector())
        gain, price = price_of_a_bit(losses, finish.level, found)
        chosen = min(found, key=lambda one: gain * one.distortion + price * one.bits)
        self.say(
            f"{finish.level} level: {gain:.3f} bits per token at most, a bit costs {price:.3g}; "
            f"{chosen.quantised.codebook.levels} levels, {chosen.bits:,.0f} bits"
        )
        wrapper = self._wrapped(chosen)
        step = cast(float, chosen.quantised.codebook.step)
        batches = self._batches(store, finish.schedule, "finish")
        rate = step * min(STEPS_AT_ONCE, STEPS_GONE / len(batches))
        self._train(batches, rate, wrapper, price * math.log(2))
        return wrapper.finish()

    def compared(self, store: TokenStore, sample: np.ndarray, risk: RiskSpec) -> Losses:
        """Return the losses of some documents with and without the vector."""
        with uncompiled():
            risks = token_risks(self.model, store, sample, risk, frozen=self.model)
        return losses_of(risks, store, CertifySpec())

    def read(self, store: TokenStore, sample: np.ndarray, risk: RiskSpec) -> TokenRisks:
        """Return the losses of some documents with the vector."""
        with uncompiled():
            return token_risks(self.model, store, sample, risk)

    def _wrapped(self, chosen: Candidate) -> QuantizingWrapper:
        codebook = chosen.quantised.codebook
        levels = max(FEWEST_LEVELS, codebook.levels)
        return QuantizingWrapper(self.model, levels=levels, step=codebook.step)

    def _batches(self, store: TokenStore, schedule: Schedule, use: str = "fit") -> list[Stretches]:
        """Return batches of similar lengths in an order drawn by the seed."""
        key = store.fingerprint
        if key not in self._rows:
            limit = getattr(self.model.config, "max_position_embeddings", 1024)
            spec = RiskSpec(max_length=min(1024, limit))
            rows = stretches(store, countable_documents(store), spec)
            self._rows[key] = list(rows.batches(self.batch_tokens))
        found = self._rows[key]
        wanted = max(2, schedule.tokens // self.batch_tokens)
        stream = generator(schedule.seed, use)
        order: list[int] = []
        while len(order) < wanted:
            order += torch.randperm(len(found), generator=stream).tolist()
        self._store = store
        return [found[number] for number in order[:wanted]]

    def _train(
        self,
        batches: list[Stretches],
        rate: float,
        wrapper: QuantizingWrapper | None = None,
        price: float = 0.0,
    ) -> float:
        """Take a step on each batch; return the mean loss of the last quarter, in nats."""
        self.model.train()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimiser = torch.optim.Adam(trained, lr=rate, betas=(0.9, 0.99))
        steps = len(batches)
        warm = max(1, int(WARM_UP * steps))
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: min((step + 1) / warm, (steps - step) / steps)
        )
        losses = []
        start = time.perf_counter()
        with self._loss_in_chunks():
            for number, batch in enumerate(batches):
                loss = self._loss(batch)
                losses.append(loss.detach())
                (loss if wrapper is None else loss + price * wrapper.bits()).backward()
                nn.utils.clip_grad_norm_(trained, 1.0)
                optimiser.step()
                optimiser.zero_grad()
                schedule.step()
                if (number + 1) % LOGGED == 0:
                    mean = float(torch.stack(losses[-LOGGED:]).mean())
                    speed = self.batch_tokens * (number + 1) / (time.perf_counter() - start)
                    self.say(
                        f"  step {number + 1} of {steps}: {mean:.4f} nats, {speed:,.0f} tokens/s"
                    )
        self.model.eval()
        return float(torch.stack(losses[-max(1, steps // 4) :]).mean())

    @contextmanager
    def _loss_in_chunks(self) -> Iterator[None]:
        with ExitStack() as stack:
            with uncompiled():  # a probe of a few tokens is not worth a graph
                stack.enter_context(
                    chunked_loss(self.model, chunk_tokens=self.chunk, compiled=self.compiled)
                )
            yield

    def _loss(self, batch: Stretches) -> Tensor:
        tokens, places = batch.padded(self._store)
        labels = torch.full_like(tokens, IGNORED)
        labels.view(-1)[places] = tokens.view(-1)[places]
        tokens, labels = (part.to(DEVICE, non_blocking=True) for part in (tokens, labels))
        loss: Tensor = self.model(input_ids=tokens, labels=labels).loss
        return loss


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """Return the blocks of a decoder."""
    return [
        block
        for name in layer_stacks(model)
        for block in cast(nn.ModuleList, model.get_submodule(name))
    ]


def quicken(model: nn.Module, backend: str) -> None:
    """Compile the blocks for reading batches; a probe of one row is read as it was."""
    for block in blocks_of(model):
        plain = block.forward
        block.forward = partial(_either, plain, torch.compile(plain, backend=backend, dynamic=True))


def _either(
    plain: Callable[..., Any], compiled: Callable[..., Any], hidden: Tensor, *rest: Any, **more: Any
) -> Any:
    return (compiled if hidden.shape[0] > 1 else plain)(hidden, *rest, **more)


def quick_candidates(vector: np.ndarray) -> list[Candidate]:
    """Return fewer ways to write a vector than a compression tries: a tenth of the time."""
    return candidates(vector, steps=STEPS[::4], prices=PRICES[::2])


@contextmanager
def uncompiled() -> Iterator[None]:
    """Run compiled blocks as they were written: what is certified is read that way too."""
    torch.compiler.set_stance("force_eager")
    try:
        yield
    finally:
        torch.compiler.set_stance("default")
