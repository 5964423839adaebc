"""Made-up figures of comparisons, and what is decided from them."""

import numpy as np

from attittud_lab.compare.decide import ComparedTable, Scores

SEEDS = 6
NOISE = np.array([-1.0, 0.7, 0.2, -0.6, 1.1, -0.4]) / 100


"""What a seed does to all strategies alike."""


def rows(spread: float = 0.001, **means: float | tuple[float, float]) -> list[Scores]:
    """Rows by their mean on test, or (on validation, on test); `spread` is what a seed does to one
    of them alone.
    """
    found = []
    for i, (label, mean) in enumerate(means.items()):
        validation, test = mean if isinstance(mean, tuple) else (mean, mean)
        own = spread * np.random.default_rng(i).normal(size=SEEDS)
        own -= own.mean()
        values = {
            name: dict(enumerate(m + NOISE + own))
            for name, m in {"v": validation, "t": test}.items()
        }
        found.append(Scores(label, values["v"], values["t"]))
    return found


def outcome(table: ComparedTable) -> tuple[str, str | None]:
    return table.decision.outcome, table.decision.strategy
