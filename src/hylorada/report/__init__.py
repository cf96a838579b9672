"""One self-contained page per study: verdicts first, then tables, figures and provenance."""
