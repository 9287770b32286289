"""Beginnings of LoRA that look at training rows or at the base, and how they are kept.

PiSSA, OLoRA and CorDA move a part of the base's weights into the adapter: `W = W' + s·B₀A₀`. What
was moved is kept with every checkpoint, so that a resumed run has the same base to the last digit,
and is put into the published adapter, which then fits the unchanged base.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer_core.errors import InvalidSpec
from trainer_core.spec import LoraAdapter, PeftAdapter

INITIAL = "adapter_init.safetensors"
_FIELD = "adapter.init_lora_weights"
_TOKEN_COLUMNS = ("input_ids", "chosen_ids")
_ROWS = 256  # as CorDA's and EVA's authors advise
_ROWS_AT_ONCE = 8
_LONGEST = 2048
_PASSES = 20


@dataclass(frozen=True)
class Calibration:
    """What an initialisation may look at: prepared rows, and the folder of the base's weights."""

    rows: Any
    weights: Path | None = None

    def batches(self, size: int) -> list[dict[str, Any]]:
        """At most 256 rows, evenly spread, in padded batches: tensors of shape (size, longest).

        Raises InvalidSpec for rows without tokens.
        """
        import torch

        column = next((c for c in _TOKEN_COLUMNS if c in self.rows.column_names), None)
        if column is None:
            raise InvalidSpec(
                "this initialisation looks at tokens, which the rows of this task lack: use true",
                _FIELD,
            )
        stride = max(1, -(-len(self.rows) // _ROWS))
        rows = [self.rows[i][column][:_LONGEST] for i in range(0, len(self.rows), stride)]
        batches = []
        for start in range(0, len(rows), size):
            some = rows[start : start + size]
            width = max(map(len, some))
            ids = [row + [0] * (width - len(row)) for row in some]
            mask = [[1] * len(row) + [0] * (width - len(row)) for row in some]
            tensors = {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
            batches.append(tensors)
        return batches


class InitialWeights:
    """A and B as they began, by the names under which an adapter is saved."""

    def __init__(self, tensors: dict[str, Any]) -> None:
        self.tensors = tensors

    @classmethod
    def of(cls, model: Any) -> "InitialWeights":
        """What a new adapter holds now."""
        found = {}
        for name, layer in _layers(model):
            for part in ("lora_A", "lora_B"):
                weight = getattr(layer, part)["default"].weight
                found[f"{name}.{part}.weight"] = weight.detach().cpu().clone()
        return cls(found)

    def save(self, folder: Path) -> None:
        """Write them to a checkpoint."""
        from safetensors.torch import save_file

        save_file(self.tensors, folder / INITIAL)

    def restore(self, folder: Path, model: Any) -> None:
        """Make the base what it was when the checkpoint was written.

        The decomposition is made anew by every run; another machine's may differ in its last
        digits or signs. Then the base gets back what was taken out, and gives what was taken then.
        """
        import torch
        from safetensors.torch import load_file

        saved = load_file(folder / INITIAL)
        for name, layer in _layers(model):
            names = [f"{name}.{part}.weight" for part in ("lora_A", "lora_B")]
            if all(torch.equal(saved[n], self.tensors[n]) for n in names):
                continue
            weight, scale = layer.get_base_layer().weight, layer.scaling["default"]
            ours, theirs = (_product(t, names, weight.device) for t in (self.tensors, saved))
            weight.data = (weight.data.float() + scale * (ours - theirs)).to(weight.dtype)
        self.tensors = saved

    def as_plain_lora(self, tensors: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
        """The trained adapter for the unchanged base: `BA − B₀A₀` as one of twice the rank.

        `config` is changed to fit.
        """
        import torch

        made = {}
        for name, tensor in tensors.items():
            began = self.tensors.get(name)
            if began is None:
                made[name] = tensor
            elif "lora_A" in name:
                made[name] = torch.cat([tensor, began.to(tensor)], dim=0)
            else:
                made[name] = torch.cat([tensor, -began.to(tensor)], dim=1)
        config["r"] *= 2
        config["lora_alpha"] *= 2**0.5 if config["use_rslora"] else 2
        return made


def prepare_init(model: Any, config: Any, calibration: Calibration | None) -> None:
    """What must happen to the bare model: CorDA's covariances of each layer's inputs."""
    if config.init_lora_weights != "corda":
        return
    from peft.tuners.lora.corda import preprocess_corda
    from peft.tuners.tuners_utils import _maybe_include_all_linear_layers

    _maybe_include_all_linear_layers(config, model)
    batches = _required(calibration).batches(1)
    _to_device(model)
    preprocess_corda(model, config, run_model=lambda: _run(model, batches))


def refine_init(
    model: Any, adapter: PeftAdapter, calibration: Calibration | None
) -> InitialWeights | None:
    """Finish what PEFT began; returns what was taken out of the base, None for nothing."""
    if not isinstance(adapter, LoraAdapter):
        return None
    if adapter.init_lora_weights == "eva":
        _eva(model, _required(calibration))
    elif adapter.init_lora_weights == "loftq":
        _loftq(model, _required(calibration))
    return InitialWeights.of(model) if adapter.changes_base else None


def _eva(model: Any, calibration: Calibration) -> None:
    """A spans the directions that explain most of a layer's inputs; B is zero."""
    from peft.tuners.lora.eva import initialize_lora_eva_weights

    batches = calibration.batches(_ROWS_AT_ONCE)
    runs = iter(range(_PASSES * len(batches) + 1))

    def forward(_: Any, inputs: dict[str, Any]) -> None:
        if next(runs, None) is None:
            raise InvalidSpec(
                "'eva' does not settle on these rows: give more of them, lower adapter.r, or use"
                " another adapter.init_lora_weights",
                _FIELD,
            )
        model(**inputs)

    _to_device(model)
    initialize_lora_eva_weights(model, batches, forward_fn=forward, show_progress_bar=False)


def _loftq(model: Any, calibration: Calibration) -> None:
    """A and B make up for the error of the 4-bit base; PEFT computes them on a GPU alone."""
    from peft import replace_lora_weights_loftq

    folder = calibration.weights
    if folder is None:
        raise InvalidSpec("'loftq' needs the weights of the base as safetensors", _FIELD)
    replace_lora_weights_loftq(model, str(folder / "model.safetensors"))


def _required(calibration: Calibration | None) -> Calibration:
    if calibration is None:
        raise InvalidSpec("this initialisation needs training rows: use true", _FIELD)
    return calibration


def _run(model: Any, batches: list[dict[str, Any]]) -> None:
    import torch

    with torch.no_grad():
        for batch in batches:
            model(**{name: tensor.to(model.device) for name, tensor in batch.items()})


def _to_device(model: Any) -> None:
    """Looking at rows is quick on a GPU alone; quantized models are there already."""
    import torch

    if torch.cuda.is_available() and not getattr(model, "is_quantized", False):
        model.to("cuda")


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    from peft.tuners.lora import LoraLayer

    for name, module in model.named_modules():
        if isinstance(module, LoraLayer) and "default" in module.lora_A:
            yield name, module


def _product(tensors: dict[str, Any], names: list[str], device: Any) -> Any:
    a, b = (tensors[name].to(device).float() for name in names)
    return b @ a
