"""The errors a user can repair: each message names the rule, the value and the repair."""


class SpecError(ValueError):
    """Raised when a setting breaks a rule."""


class UnsupportedModelError(SpecError):
    """Raised when a model lacks what an adapter needs, such as token positions."""


class RunError(RuntimeError):
    """Raised when a run cannot end in a result: it diverged, or something did not train."""


class CheckpointError(ValueError):
    """Raised when stored weights do not fit the adapter that should receive them."""


class CodecError(ValueError):
    """Raised when a message is damaged, truncated or foreign, or holds what it must not."""
