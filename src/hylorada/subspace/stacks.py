"""Which layer a tensor belongs to, from the module tree of any architecture."""

from torch import nn

from hylorada.subspace.allocation import REST


def layer_stacks(module: nn.Module) -> list[str]:
    """Return the names of the outermost lists of blocks: one for a decoder, two for a pair.

    A list inside a block holds experts or heads, not layers; a list of single operations, such as
    a sequence of linear maps, is no stack of blocks.
    """
    found: list[str] = []
    for name, child in module.named_modules():
        if any(name.startswith(f"{stack}.") for stack in found):
            continue
        if isinstance(child, nn.ModuleList | nn.Sequential) and _is_stack(child):
            found.append(name)
    return found


def layer_of(tensor_name: str, stacks: list[str]) -> str:
    """Return the group of a tensor: the stack and the number of its block, or the rest."""
    for stack in stacks:
        prefix = f"{stack}." if stack else ""
        if tensor_name.startswith(prefix):
            number = tensor_name.removeprefix(prefix).partition(".")[0]
            return f"{prefix}{number}"
    return REST


def _is_stack(blocks: nn.ModuleList | nn.Sequential) -> bool:
    kinds = {type(block) for block in blocks}
    # A sequence is a stack only where it repeats one block: others are a block's own parts.
    repeats = isinstance(blocks, nn.ModuleList) or (len(blocks) > 1 and len(kinds) == 1)
    return repeats and len(blocks) > 0 and next(blocks[0].children(), None) is not None
