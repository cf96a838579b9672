"""How the coordinates are divided between the factors A and B: jointly, by a ratio, or learned."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from math import prod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hylorada.errors import SpecError
from hylorada.specs.adapters import SubspaceFields
from hylorada.subspace.projections import Projection, build_projection

REST = "rest"  # the group of all that lies outside the stack of layers
SIDES = ("A", "B")


def layer_stacks(module: nn.Module) -> list[str]:
    """Return the names of the outermost lists of blocks: one for a decoder, two for a pair.

    A list inside a block holds experts or heads, not layers; a list of single operations, such as
    a sequence of linear maps, is no stack of blocks.
    """
    found: list[str] = []
    for name, child in module.named_modules():
        is_inside = any(name.startswith(f"{stack}.") for stack in found)
        if is_inside or not isinstance(child, nn.ModuleList | nn.Sequential):
            continue
        # A sequence is a stack only where it repeats one block: others are a block's own parts.
        repeats = len(child) > 1 and len({type(block) for block in child}) == 1
        holds_blocks = len(child) > 0 and next(child[0].children(), None) is not None
        if holds_blocks and (repeats or isinstance(child, nn.ModuleList)):
            found.append(name)
    return found


def layer_of(tensor_name: str, stacks: list[str]) -> str:
    """Return the group of a tensor: the stack and the number of its block, or the rest."""
    for stack in stacks:
        prefix = f"{stack}." if stack else ""
        if tensor_name.startswith(prefix):
            return prefix + tensor_name.removeprefix(prefix).partition(".")[0]
    return REST


@dataclass(frozen=True, slots=True)
class Target:
    """One tensor that is moved by the coordinates.

    Attributes:
        factor: "A", "B", or "" for a tensor that is neither; it is counted with A.
        layer: The group of its layer, or `REST`.
    """

    name: str
    shape: tuple[int, ...]
    factor: str = ""
    layer: str = REST

    @property
    def size(self) -> int:
        """The number of its parameters."""
        return prod(self.shape)

    @property
    def side(self) -> str:
        """The factor it is counted with."""
        return "B" if self.factor == "B" else "A"


class Allocation:
    """The map from a vector, and gates in "learned" mode, to all targets at once.

    "uniform" projects all coordinates onto A and B together, "fixed" gives each factor its own
    coordinates and projection, "learned" divides each layer's by a trained gate.

    Attributes:
        layout: The targets in the order of the flat parameters: A's first, then B's.
        a_size: How many of the `full` parameters are A's.
        slices: How many coordinates each layer's gate divides in "learned" mode; else empty.
    """

    def __init__(self, targets: Sequence[Target], settings: SubspaceFields) -> None:
        settings.check()
        # A copy of its own: a PEFT configuration has more fields, and may be changed.
        own = {field.name: getattr(settings, field.name) for field in fields(SubspaceFields)}
        self.settings, mode = SubspaceFields(**own), settings.allocation_mode
        ordered = sorted(targets, key=lambda target: natural_order(target.name))
        if not ordered:
            raise SpecError("a subspace needs at least one tensor to move; got none")
        sides = {side: [t for t in ordered if t.side == side] for side in SIDES}
        if mode != "uniform" and not (sides["B"] and any(t.factor == "A" for t in sides["A"])):
            names = ", ".join(t.name for t in (sides["A"] + sides["B"])[:3])
            raise SpecError(
                f"allocation_mode {mode!r} divides coordinates between factors A and B, and there "
                f"are none among {names}, …; use 'uniform', or adapt with LoRA first"
            )
        self.slices: dict[str, int] = {}
        if mode == "learned":
            self.slices = _slices(ordered, settings.intrinsic_dim)
            layers = list(self.slices)
            for members in sides.values():
                members.sort(key=lambda target: layers.index(target.layer))
        self.layout = (*sides["A"], *sides["B"])
        self.full = sum(target.size for target in self.layout)
        self.a_size = sum(target.size for target in sides["A"])
        self.projection = self._build()

    def coordinates(
        self,
        vector: Float[Tensor, " dim"],
        gates: Float[Tensor, " groups"] | None = None,
        sharpness: float | None = None,
    ) -> Float[Tensor, " inner"]:
        """Return what the projection is applied to: the vector, or its two masked copies."""
        if gates is None:
            return vector
        mask = self.mask(gates, sharpness)
        return torch.cat([vector * (1 - mask), vector * mask])

    def mask(
        self, gates: Float[Tensor, " groups"], sharpness: float | None = None
    ) -> Float[Tensor, " dim"]:
        """Return B's share of each coordinate, `m_i = σ(C(γ d − i))` within each layer's slice."""
        steepness = self.settings.gate_sharpness if sharpness is None else sharpness
        masks = []
        for share, size in zip(gates.sigmoid(), self.slices.values(), strict=True):
            steep = steepness / size if self.settings.relative_sharpness else steepness
            places = torch.arange(size, dtype=gates.dtype, device=gates.device)
            masks.append((steep * (share * size - places)).sigmoid())
        return torch.cat(masks)

    def describe(self) -> list[str]:
        """Return what decides the parameters that a vector stands for, one fact a line."""
        settings, mode = self.settings, self.settings.allocation_mode
        facts = [f"{t.name} {t.shape} {t.factor} {t.layer}" for t in self.layout]
        facts.append(f"{mode} {settings.intrinsic_dim} seed {settings.projection_seed}")
        if mode == "fixed":
            facts.append(f"split {settings.split()}")
        if mode == "learned":
            facts += [f"{layer} {size}" for layer, size in self.slices.items()]
            facts += [f"sharpness {settings.gate_sharpness} relative {settings.relative_sharpness}"]
        return [*facts, self.projection.fingerprint()]

    def _build(self) -> Projection:
        settings = self.settings
        blocks = [("all", "AB", self.full, settings.intrinsic_dim)]
        if settings.allocation_mode == "fixed":
            d_a, d_b = settings.split()
            blocks = [("all", "A", self.a_size, d_a), ("all", "B", self.full - self.a_size, d_b)]
        elif settings.allocation_mode == "learned":
            blocks = [
                (layer, side, _size(self.layout, layer, side), dim)
                for side in SIDES
                for layer, dim in self.slices.items()
            ]
        kind, seed = settings.projection, settings.projection_seed
        drawn = [
            build_projection(kind, full, dim, seed=seed, name=name, factor=factor)
            for name, factor, full, dim in blocks
        ]
        return drawn[0] if len(drawn) == 1 else type(drawn[0]).joined(drawn)


def natural_order(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names with their numbers in numeric order."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def proportional(weights: Sequence[int], total: int, capacities: Sequence[int]) -> tuple[int, ...]:
    """Return sizes in proportion to the weights that sum to `total`.

    None exceeds its capacity and each is at least one; what a full one cannot hold goes to the
    others in proportion.
    """
    if not len(weights) <= total <= sum(capacities):
        raise SpecError(
            f"intrinsic_dim must be between the {len(weights)} layers and the {sum(capacities)} "
            f"parameters of their smaller factors in 'learned' mode; got {total}"
        )
    low, high = 0.0, float(total)
    for _ in range(100):  # the scale at which the bounded sizes sum to the total
        scale = (low + high) / 2
        bounded = [min(max(w * scale, 1.0), c) for w, c in zip(weights, capacities, strict=True)]
        low, high = (scale, high) if sum(bounded) < total else (low, scale)
    shares = [min(max(w * high, 1.0), c) for w, c in zip(weights, capacities, strict=True)]
    sizes = [int(share + 1e-9) for share in shares]
    by_remainder = sorted(
        (number for number, size in enumerate(sizes) if size < capacities[number]),
        key=lambda number: round(sizes[number] - shares[number], 6),
    )
    for number in by_remainder[: total - sum(sizes)]:
        sizes[number] += 1
    return tuple(sizes)


def _slices(targets: Sequence[Target], dim: int) -> dict[str, int]:
    """Return each layer's slice of the coordinates, in proportion to its parameters."""
    layers = sorted(dict.fromkeys(t.layer for t in targets), key=lambda layer: layer == REST)
    sizes = {layer: [_size(targets, layer, side) for side in SIDES] for layer in layers}
    for layer, of_factors in sizes.items():
        if 0 in of_factors:
            raise SpecError(
                f"allocation_mode 'learned' needs an A and a B factor in every group; {layer!r} "
                f"has only {'B' if of_factors[0] == 0 else 'A'}; use 'fixed' or 'uniform'"
            )
    weights = [sum(of_factors) for of_factors in sizes.values()]
    capacities = [min(of_factors) for of_factors in sizes.values()]
    return dict(zip(layers, proportional(weights, dim, capacities), strict=True))


def _size(targets: Sequence[Target], layer: str, side: str) -> int:
    """Return the number of a layer's parameters on one side."""
    return sum(target.size for target in targets if (target.layer, target.side) == (layer, side))
