"""A landmark design, a metric and a study for hylorada, from outside of it."""
