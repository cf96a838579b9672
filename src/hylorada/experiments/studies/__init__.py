"""What studies compare, how they are judged, and what is said of them."""

from hylorada.experiments.studies.components import COMPONENTS
from hylorada.experiments.studies.definitions import STUDIES, plan_of
from hylorada.experiments.studies.options import StudyOptions

__all__ = ["COMPONENTS", "STUDIES", "StudyOptions", "plan_of"]
