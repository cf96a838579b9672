"""How the coordinates are divided between the factors A and B: jointly, by a ratio, or learned."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, prod

import torch
from jaxtyping import Float
from torch import Tensor

from hylorada.errors import SpecError
from hylorada.names import require_one_of
from hylorada.subspace.projection import Projection
from hylorada.subspace.projections import KINDS, build_projection, side_by_side

MODES = ("uniform", "fixed", "learned")
REST = "rest"  # the group of all that lies outside the stack of layers
SIDES = ("A", "B")


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationSpec:
    """How `dim` coordinates move the factors.

    Attributes:
        mode: "uniform" projects all coordinates onto A and B together, "fixed" gives each factor
            its own coordinates and projection, "learned" divides each layer's by a trained gate.
        ratio: The share of B in "fixed" mode, between 0 and 1.
        sharpness: C of the soft mask σ(C(γ d − i)) in "learned" mode.
        sharpness_start: C at the start of training, from where it moves geometrically to
            `sharpness`; None keeps it.
        relative_sharpness: Whether C is counted per slice, C/d, instead of per coordinate.
        projection: The kind of projection.
        seed: The seed of all projections.
    """

    dim: int = 1000
    mode: str = "uniform"
    ratio: float = 0.5
    sharpness: float = 10.0
    sharpness_start: float | None = None
    relative_sharpness: bool = False
    projection: str = "grouped"
    seed: int = 137

    def __post_init__(self) -> None:
        """Check every field."""
        require_one_of("allocation_mode", self.mode, MODES)
        if self.dim < 1:
            raise SpecError(f"intrinsic_dim must be at least 1; got {self.dim}")
        if not 0.0 < self.ratio < 1.0:
            raise SpecError(
                f"allocation_ratio is B's share, strictly between 0 and 1; got {self.ratio}"
            )
        for name in ("sharpness", "sharpness_start"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < inf:
                raise SpecError(f"gate_{name} must be positive and finite; got {value}")
        if self.seed < 0:
            raise SpecError(f"projection_seed must not be negative; got {self.seed}")
        require_one_of("projection", self.projection, KINDS)
        if self.mode == "fixed":
            self.split()

    def split(self) -> tuple[int, int]:
        """Return (d_A, d_B): the ratio is B's share, so 1000 at 0.2 gives (800, 200)."""
        # A decimal like 0.29 lies just below its name; 100 times it is meant to be 29.
        d_b = int(self.dim * self.ratio + 1e-9)
        if not 0 < d_b < self.dim:
            raise SpecError(
                f"allocation_ratio must leave a coordinate to A and one to B; {self.ratio} of "
                f"{self.dim} gives B {d_b}; raise intrinsic_dim"
            )
        return self.dim - d_b, d_b


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The coordinates that one layer's gate divides."""

    layer: str
    size: int


class Allocation:
    """The map from a vector, and gates in "learned" mode, to all targets at once.

    Attributes:
        layout: The targets in the order of the flat parameters: A's first, then B's.
        projection: From the coordinates of all blocks to the flat parameters.
        slices: The coordinates of each gate in "learned" mode; empty otherwise.
    """

    def __init__(self, targets: Sequence[Target], spec: AllocationSpec) -> None:
        ordered = sorted(targets, key=lambda target: natural_order(target.name))
        if not ordered:
            raise SpecError("a subspace needs at least one tensor to move; got none")
        sides = {side: [t for t in ordered if t.side == side] for side in SIDES}
        if spec.mode != "uniform":
            _require_factors(sides, spec.mode)
        self.spec = spec
        self.slices: tuple[Slice, ...] = ()
        if spec.mode == "learned":
            self.slices = _slices(ordered, spec.dim)
            names = [piece.layer for piece in self.slices]
            for side, members in sides.items():
                sides[side] = sorted(members, key=lambda target: names.index(target.layer))
        self.layout = (*sides["A"], *sides["B"])
        self.full = sum(target.size for target in self.layout)
        self.a_size = sum(target.size for target in sides["A"])
        self.projection = self._build()
        self._indices: dict[torch.device, Tensor] = {}

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
        value = self.spec.sharpness if sharpness is None else sharpness
        index = self._index(gates.device).to(gates.dtype)
        shares = gates.sigmoid()
        masks, start = [], 0
        for number, piece in enumerate(self.slices):
            steep = value / piece.size if self.spec.relative_sharpness else value
            places = index[start : start + piece.size]
            masks.append((steep * (shares[number] * piece.size - places)).sigmoid())
            start += piece.size
        return torch.cat(masks)

    def describe(self) -> list[str]:
        """Return what decides the parameters that a vector stands for, one fact a line."""
        spec = self.spec
        facts = [f"{t.name} {t.shape} {t.factor} {t.layer}" for t in self.layout]
        facts.append(f"{spec.mode} {spec.dim} seed {spec.seed}")
        if spec.mode == "fixed":
            facts.append(f"split {spec.split()}")
        if spec.mode == "learned":
            facts += [f"{piece.layer} {piece.size}" for piece in self.slices]
            facts.append(f"sharpness {spec.sharpness} relative {spec.relative_sharpness}")
        return [*facts, self.projection.fingerprint()]

    def _build(self) -> Projection:
        spec = self.spec
        if spec.mode == "uniform":
            blocks = [("all", "AB", self.full, spec.dim)]
        elif spec.mode == "fixed":
            sizes = (self.a_size, self.full - self.a_size)
            blocks = [
                ("all", side, full, dim)
                for side, full, dim in zip(SIDES, sizes, spec.split(), strict=True)
            ]
        else:
            blocks = [
                (piece.layer, side, _size(self.layout, piece.layer, side), piece.size)
                for side in SIDES
                for piece in self.slices
            ]
        return side_by_side(
            [
                build_projection(
                    spec.projection, full, dim, seed=spec.seed, name=name, factor=factor
                )
                for name, factor, full, dim in blocks
            ]
        )

    def _index(self, device: torch.device) -> Tensor:
        if device not in self._indices:
            parts = [torch.arange(piece.size, dtype=torch.float32) for piece in self.slices]
            self._indices[device] = torch.cat(parts).to(device)
        return self._indices[device]


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


def _slices(targets: Sequence[Target], dim: int) -> tuple[Slice, ...]:
    """Return each layer's slice of the coordinates, in proportion to its parameters."""
    layers = list(dict.fromkeys(target.layer for target in targets if target.layer != REST))
    if any(target.layer == REST for target in targets):
        layers.append(REST)
    sizes = {layer: [_size(targets, layer, side) for side in SIDES] for layer in layers}
    for layer, of_factors in sizes.items():
        if 0 in of_factors:
            raise SpecError(
                f"allocation_mode 'learned' needs an A and a B factor in every group; {layer!r} "
                f"has only {'B' if of_factors[0] == 0 else 'A'}; use 'fixed' or 'uniform'"
            )
    weights = [sum(of_factors) for of_factors in sizes.values()]
    capacities = [min(of_factors) for of_factors in sizes.values()]
    divided = proportional(weights, dim, capacities)
    pairs = zip(layers, divided, strict=True)
    return tuple(Slice(layer=layer, size=size) for layer, size in pairs)


def _size(targets: Sequence[Target], layer: str, side: str) -> int:
    """Return the number of a layer's parameters on one side."""
    return sum(target.size for target in targets if (target.layer, target.side) == (layer, side))


def _require_factors(sides: dict[str, list[Target]], mode: str) -> None:
    if not any(target.factor == "A" for target in sides["A"]) or not sides["B"]:
        names = [target.name for members in sides.values() for target in members][:3]
        raise SpecError(
            f"allocation_mode {mode!r} divides coordinates between factors A and B, and there are "
            f"none among {', '.join(names)}, …; use 'uniform', or adapt with LoRA first"
        )
