"""Nothing silently untrained: was each parameter optimised, reached, moved and finite?"""

import hashlib
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle
from transformers import TrainerCallback

from hylorada.errors import RunError

# Larger tensors are compared by digest, so that an audit never doubles an embedding's memory.
LARGEST_COPY = 1 << 20
# More lost updates than this and the reported training is not the one that happened.
TOLERATED_LOST_SHARE = 0.5
# A product of three zero-initialised factors has gradients everywhere only after as many steps.
FEWEST_STEPS = 4
LOW_PRECISION = (torch.bfloat16, torch.float16)

logger = logging.getLogger(__name__)


class UntrainedParameterError(RunError):
    """Raised when a parameter that was declared trainable did not train."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterRecord:
    """What happened to one trainable parameter.

    Attributes:
        received_gradient: Whether any backward pass gave it a gradient other than zero.
        lost_share: Share of updates with a gradient that rounding to a low precision undid.
        finite_gradients: Whether no step was taken with a gradient that is infinite or no number.
        finite: Whether its values are numbers at the end of training.
    """

    name: str
    dtype: torch.dtype
    in_optimizer: bool
    received_gradient: bool
    moved: bool
    lost_share: float = 0.0
    finite_gradients: bool = True
    finite: bool = True

    @property
    def diverged(self) -> bool:
        """Whether its values or a gradient it was stepped with were not finite."""
        return not (self.finite and self.finite_gradients)

    @property
    def cause(self) -> str | None:
        """The likely reason why the parameter did not train, or None if it did."""
        if self.diverged:
            what = "gradients were" if self.finite else "values are"
            return f"its {what} not finite: the training diverged; lower the learning rate"
        if not self.in_optimizer:
            return "not in the optimiser: built from other parameters, or before this one existed"
        if not self.received_gradient:
            return "no gradient: unused in the forward pass, detached, or multiplied by zero"
        low = f"{str(self.dtype).removeprefix('torch.')} rounds its updates away; use float32"
        if not self.moved:
            stuck = "a gradient but no movement: learning rate zero or every step skipped"
            return low if self.lost_share > 0 else stuck
        if self.lost_share > TOLERATED_LOST_SHARE:
            return f"{low} ({self.lost_share:.0%} of updates lost)"
        return None


@dataclass(slots=True)
class AuditReport:
    """The records of an audit, complete once the audit has finished."""

    records: list[ParameterRecord] = field(default_factory=list)
    strangers: int = 0
    steps: int = 0

    @property
    def offenders(self) -> list[ParameterRecord]:
        """The trainable parameters that did not train."""
        return [record for record in self.records if record.cause is not None]

    @property
    def verdict(self) -> str:
        """One line: everything trained, or what did not and the likely cause."""
        if not self.records:
            return "nothing was declared trainable"
        by_cause: dict[str, list[str]] = {}
        for record in self.offenders:
            by_cause.setdefault(str(record.cause), []).append(record.name)
        problems = []
        for cause, names in by_cause.items():
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            problems.append(f"{', '.join(names[:3])}{more} ({cause})")
        if self.strangers:
            problems.append(f"{self.strangers} optimised tensors that the model does not register")
        count = f"{len(self.records)} trainable parameters"
        if not problems:
            return f"all {count} are optimised, received gradients and moved"
        return f"{len(self.offenders)} of {count} did not train: " + "; ".join(problems)

    def raise_if_untrained(self) -> None:
        """Raise `UntrainedParameterError` with the verdict unless every parameter trained."""
        if not self.records or self.offenders or self.strangers:
            raise UntrainedParameterError(self.verdict)


class Seen(TypedDict):
    """What an audit has seen so far; `lost` counts lost updates, and all, of each parameter."""

    steps: int
    received: list[str]
    moved: list[str]
    lost: dict[str, list[int]]
    diverged: list[str]


class TrainingAudit:
    """Watch the trainable parameters of a model from `start` to `finish`.

    Gradients are seen by hooks that fire once a gradient has been accumulated, so gradient
    accumulation and `zero_grad` hide nothing; a hook goes away once it has seen one. A parameter
    that receives its first gradient at the second step (LoRA's A while B is zero) is fine.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.report = AuditReport()
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        registered = {id(parameter) for parameter in model.parameters()}
        # Hooks belong on the torch optimiser inside wrappers such as accelerate's.
        while isinstance(inner := getattr(optimizer, "optimizer", None), Optimizer):
            optimizer = inner
        self._optimizer = optimizer
        self._optimised = {id(p) for group in optimizer.param_groups for p in group["params"]}
        self.report.strangers = len(self._optimised - registered)
        self._before: dict[str, Tensor] = {}
        self._flags: dict[str, Tensor] = {}
        self._received: set[str] = set()
        self._moved: set[str] = set()
        self._diverged: set[str] = set()
        self._largest: dict[str, Tensor] = {}
        self._lost: dict[str, list[int]] = {}
        self._handles: dict[str, RemovableHandle] = {}
        self._stepping: dict[str, tuple[Tensor, Tensor]] = {}

    def start(self) -> None:
        """Remember the present values, and attach hooks that note gradients and lost updates."""
        self._before = {name: _imprint(p) for name, p in self._parameters.items()}
        for name in self._parameters.keys() - self._received:
            self._watch(name)
        self._handles["before step"] = self._optimizer.register_step_pre_hook(self._before_step)
        self._handles["after step"] = self._optimizer.register_step_post_hook(self._after_step)

    def finish(self) -> AuditReport:
        """Remove every hook, fill the report and return it."""
        self._settle()
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self.report.records = []
        for name, parameter in self._parameters.items():
            lost, pushed = self._lost.get(name, (0, 0))
            record = ParameterRecord(
                name=name,
                dtype=parameter.dtype,
                in_optimizer=id(parameter) in self._optimised,
                received_gradient=name in self._received,
                moved=name in self._moved,
                lost_share=lost / max(1, pushed),
                finite_gradients=name not in self._diverged,
                finite=bool(parameter.isfinite().all()),
            )
            self.report.records.append(record)
        return self.report

    def state_dict(self) -> Seen:
        """Return what was seen so far, for a run that continues in another process."""
        self._settle()
        return Seen(
            steps=self.report.steps,
            received=sorted(self._received),
            moved=sorted(self._moved),
            lost={name: list(counts) for name, counts in self._lost.items()},
            diverged=sorted(self._diverged),
        )

    def load_state_dict(self, state: Seen) -> None:
        """Add what an interrupted run had seen."""
        self.report.steps += state["steps"]
        self._received.update(state["received"])
        self._moved.update(state["moved"])
        self._lost = {name: list(counts) for name, counts in state["lost"].items()}
        self._diverged.update(state.get("diverged", ()))

    def _watch(self, name: str) -> None:
        parameter = self._parameters[name]
        # The flag stays on the parameter's device: reading it would wait for the accelerator.
        flag = self._flags[name] = torch.zeros((), dtype=torch.bool, device=parameter.device)

        def note(watched: Tensor) -> None:
            if watched.grad is not None:
                flag.logical_or_(watched.grad.any())

        self._handles[name] = parameter.register_post_accumulate_grad_hook(note)

    def _settle(self) -> None:
        """Read the flags, drop the hooks that have done their work, and note what moved."""
        self._diverged.update(n for n, most in self._largest.items() if not bool(most.isfinite()))
        for name in [name for name, flag in self._flags.items() if bool(flag)]:
            self._received.add(name)
            del self._flags[name]
            self._handles.pop(name).remove()
        for name in self._before.keys() - self._moved:
            if not torch.equal(self._before[name], _imprint(self._parameters[name])):
                self._moved.add(name)

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
        for name, parameter in self._parameters.items():
            stepped = parameter.grad is not None and rates.get(id(parameter), 0.0) > 0.0
            if parameter.dtype in LOW_PRECISION and stepped:
                assert parameter.grad is not None
                sample, gradient = _sample(parameter), _sample(parameter.grad)
                self._stepping[name] = (sample.clone(), gradient != 0)
        # A scaler of float16 losses that hands over what it found has the step skipped.
        if not hasattr(optimizer, "found_inf"):
            self._note_gradients()

    @torch.no_grad()
    def _note_gradients(self) -> None:
        """Keep the largest value of each gradient so far; one that is not finite stays for good."""
        gradients = {n: p.grad for n, p in self._parameters.items() if p.grad is not None}
        stored = {n: g.coalesce().values() if g.is_sparse else g for n, g in gradients.items()}
        named = {n: values for n, values in stored.items() if values.numel()}
        if not named:
            return
        # All at once, and on the device: a launch for each parameter would show in every step.
        largest = torch._foreach_norm(list(named.values()), torch.inf)
        for name, most in zip(named, largest, strict=True):
            self._largest.setdefault(name, most)
        torch._foreach_maximum_([self._largest[name] for name in named], largest)

    def _after_step(self, *_: object) -> None:
        self.report.steps += 1
        for name, (before, pushed) in self._stepping.items():
            counts = self._lost.setdefault(name, [0, 0])
            still = _sample(self._parameters[name]) == before
            counts[0] += int((still & pushed).sum())
            counts[1] += int(pushed.sum())
        self._stepping.clear()
        # Ever rarer: the flags of a healthy run are all set within the first steps.
        if self.report.steps.bit_count() == 1 and self._flags:
            self._settle()


@contextmanager
def audit(model: nn.Module, optimizer: Optimizer) -> Iterator[AuditReport]:
    """Watch the steps taken inside the block and yield the report, complete at its end."""
    watch = TrainingAudit(model, optimizer)
    watch.start()
    try:
        yield watch.report
    finally:
        watch.finish()


class AuditCallback(TrainerCallback):
    """Audit a `transformers.Trainer`; at its end raise if a parameter did not train.

    After too few steps to tell the log says it, unless a parameter diverged.
    """

    def __init__(self) -> None:
        self.watch: TrainingAudit | None = None
        self.earlier: Seen | None = None

    @property
    def report(self) -> AuditReport:
        """The report of the last training, empty before its end."""
        return self.watch.report if self.watch else AuditReport()

    def on_train_begin(self, *_: object, **kwargs: Any) -> None:
        """Start to watch the model and the optimiser of the trainer."""
        self.watch = TrainingAudit(kwargs["model"], kwargs["optimizer"])
        if self.earlier is not None:
            self.watch.load_state_dict(self.earlier)
        self.watch.start()

    def on_train_end(self, *_: object, **__: object) -> None:
        """Fill the report, and raise if it names offenders."""
        assert self.watch is not None
        report = self.watch.finish()
        if report.steps >= FEWEST_STEPS or any(record.diverged for record in report.records):
            report.raise_if_untrained()
        elif report.offenders:
            logger.warning("after %d steps %s", report.steps, report.verdict)


def _sample(tensor: Tensor) -> Tensor:
    """Return at most `LARGEST_COPY` values, evenly spread over the tensor."""
    flat = tensor.detach().flatten()
    return flat[:: max(1, -(-flat.numel() // LARGEST_COPY))]


def _imprint(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU, or for a large tensor a 16-byte digest, made piece by piece."""
    if tensor.numel() <= LARGEST_COPY:
        return tensor.detach().to("cpu", copy=True)
    digest = hashlib.blake2b(digest_size=16)
    for piece in tensor.detach().flatten().split(LARGEST_COPY):
        digest.update(piece.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    return torch.tensor(list(digest.digest()), dtype=torch.uint8)
