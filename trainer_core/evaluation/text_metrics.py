"""Metrics of answers against the rows' own: exact match, ROUGE, BLEU."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainer_core.evaluation.protocol import Columns, Metric

_WORD = re.compile(r"\w+")
_ORDERS = 4


@dataclass(frozen=True)
class TextMetric:
    """The mean over all rows of a score of one answer and its reference."""

    name: str
    score: Callable[[str, str], float]
    needs: tuple[str, ...] = ("generated", "reference")
    greater_is_better: bool = True

    def statistics(self, columns: Columns) -> Any:
        """One score a row."""
        pairs = zip(columns["generated"], columns["reference"], strict=True)
        return np.array([self.score(said, wanted) for said, wanted in pairs])

    def value(self, statistics: Any) -> float | None:
        """Their mean."""
        return float(statistics.mean()) if len(statistics) else None


class Bleu:
    """BLEU of the whole corpus, 0 to 100, as sacreBLEU computes it (Papineni et al. 2002; Post
    2018): 13a tokens, exponential smoothing."""

    name = "bleu"
    needs = ("generated", "reference")
    greater_is_better = True

    def statistics(self, columns: Columns) -> Any:
        """Matching and all n-grams of each order, and both lengths."""
        from sacrebleu.metrics.bleu import BLEU

        bleu = BLEU(effective_order=True)  # the score of a row is not used, its counts are
        rows = []
        for said, wanted in zip(columns["generated"], columns["reference"], strict=True):
            found = bleu.sentence_score(said, [wanted])
            rows.append([*found.counts, *found.totals, found.sys_len, found.ref_len])
        return np.array(rows, dtype=np.int64).reshape(-1, 2 * _ORDERS + 2)

    def value(self, statistics: Any) -> float | None:
        """The counts added up make the corpus' score."""
        from sacrebleu.metrics.bleu import BLEU

        if not len(statistics):
            return None
        sums = [int(total) for total in statistics.sum(axis=0)]
        counts, totals = sums[:_ORDERS], sums[_ORDERS : 2 * _ORDERS]
        lengths = {"sys_len": sums[-2], "ref_len": sums[-1]}
        return float(BLEU.compute_bleu(counts, totals, **lengths, smooth_method="exp").score)


def exact_match(said: str, wanted: str) -> float:
    """1 where both are the same text but for blanks around it."""
    return float(said.strip() == wanted.strip())


def rouge_n(order: int) -> Callable[[str, str], float]:
    """ROUGE-N's F-measure (Lin 2004, section 2): n-grams in common, each as often as in both.

    Words are runs of letters and digits of any script, in lower case, without stemming.
    """

    def score(said: str, wanted: str) -> float:
        ours, theirs = (_grams(words_of(text), order) for text in (said, wanted))
        common = sum((ours & theirs).values())
        return _f_measure(common, sum(ours.values()), sum(theirs.values()))

    return score


def rouge_l(said: str, wanted: str) -> float:
    """ROUGE-L's F-measure (Lin 2004, section 3): words of the longest common subsequence."""
    ours, theirs = words_of(said), words_of(wanted)
    return _f_measure(_longest_common(ours, theirs), len(ours), len(theirs))


def words_of(text: str) -> list[str]:
    """Runs of letters and digits, in lower case."""
    return _WORD.findall(text.lower())


def _grams(words: Sequence[str], order: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[i:] for i in range(order)), strict=False))


def _f_measure(common: int, ours: int, theirs: int) -> float:
    return 2 * common / (ours + theirs) if common else 0.0


def _longest_common(one: Sequence[str], other: Sequence[str]) -> int:
    row = [0] * (len(other) + 1)
    for word in one:
        before = 0
        for j, another in enumerate(other, start=1):
            above = row[j]
            row[j] = before + 1 if word == another else max(row[j], row[j - 1])
            before = above
    return row[-1]


TEXT: tuple[Metric, ...] = (
    TextMetric("exact_match", exact_match),
    TextMetric("rouge1", rouge_n(1)),
    TextMetric("rouge2", rouge_n(2)),
    TextMetric("rougeL", rouge_l),
    Bleu(),
)
