"""Which batches a rank trains on and measures: each row once an epoch, and nothing twice."""

from collections.abc import Iterator
from functools import partial
from typing import Any

from trainer_core.meter import Meter
from trainer_core.ranks import Ranks

FILLER = "filler"
"""The key of a batch that counts for nothing."""


class RankShare:
    """Every `count`-th batch of all batches, beginning with the one of the rank's number.

    A step of `count` ranks that accumulate k batches so is made of the very batches that one
    process trains on in a step of count · k. In training all ranks must make as many micro-batches:
    where the last round has fewer batches than ranks, the others get a filler, one row that counts
    for nothing (its loss is multiplied by 0 and its tokens are not counted). Without `fills`, in
    evaluations, a rank may simply have one batch less.
    """

    def __init__(self, batches: Any, ranks: Ranks, *, fills: bool) -> None:
        self.batch_sampler = batches  # the name that libraries look behind a shard by
        self.is_filler = False
        self._ranks = ranks
        self._fills = fills

    @property
    def sampler(self) -> Any:
        """The order of rows, which libraries replace."""
        return self.batch_sampler.sampler

    @sampler.setter
    def sampler(self, sampler: Any) -> None:
        self.batch_sampler.sampler = sampler

    @property
    def batch_size(self) -> Any:
        """Rows in one batch of a rank."""
        return self.batch_sampler.batch_size

    @property
    def drop_last(self) -> bool:
        """Never: every row counts."""
        return False

    def set_epoch(self, epoch: int) -> None:
        """Tell batches whose order depends on it."""
        if hasattr(self.batch_sampler, "set_epoch"):
            self.batch_sampler.set_epoch(epoch)

    def __len__(self) -> int:
        rounds, rest = divmod(len(self.batch_sampler), self._ranks.count)
        has_more = rest > 0 if self._fills else self._ranks.number < rest
        return rounds + has_more

    def __iter__(self) -> Iterator[list[int]]:
        first: list[int] = []
        number = -1
        for number, batch in enumerate(self.batch_sampler):
            first = first or batch
            if number % self._ranks.count == self._ranks.number:
                self.is_filler = False
                yield batch
        missing = self._ranks.number > number % self._ranks.count
        if self._fills and first and missing:
            self.is_filler = True
            yield first[:1]


def shared_loader(loader: Any, ranks: Ranks, accelerator: Any, meter: Meter, *, fills: bool) -> Any:
    """A library's loader of all batches as one of this rank's, prepared as for a single process."""
    from accelerate.data_loader import prepare_data_loader
    from torch.utils.data import DataLoader

    share = RankShare(loader.batch_sampler, ranks, fills=fills)
    own = DataLoader(
        loader.dataset,
        batch_sampler=share,
        collate_fn=partial(_collate, loader.collate_fn, share, meter),
        pin_memory=loader.pin_memory,
    )
    prepared = prepare_data_loader(
        own,
        accelerator.device,
        num_processes=1,
        process_index=0,
        put_on_device=accelerator.device_placement,
        use_seedable_sampler=accelerator.use_seedable_sampler,
        data_seed=accelerator.dataloader_config.data_seed,
        non_blocking=accelerator.non_blocking,
    )
    accelerator._dataloaders.append(prepared)
    return prepared


def _collate(collate: Any, share: RankShare, meter: Meter, rows: list[Any]) -> Any:
    if not share.is_filler:
        return collate(rows)
    with meter.paused():
        batch = collate(rows)
    meter.fetched(0, 0)
    return {**batch, FILLER: True}
