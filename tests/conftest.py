"""Shapes written in signatures are checked while the tests run."""

import os

from jaxtyping import install_import_hook

os.environ.setdefault("HF_HUB_OFFLINE", "1")
# Must run before the first import of the package.
install_import_hook("hylorada", "tests.typechecking.checked")
