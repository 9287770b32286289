"""What someone writes who uses TRL by itself: `python bare_sft.py MODEL ROWS OUT`.

Says on stdout when the first optimizer step was done, in seconds since the epoch.
"""
# ruff: noqa: TID253 - the whole point is a script that imports the training stack

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import SFTConfig, SFTTrainer

from trainer_core.loss_kernel import ensure_loss_kernel


class FirstStep(TrainerCallback):
    """Says when the first step is done."""

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_: Any) -> None:
        if state.global_step == 1:
            print(f"FIRST_STEP {time.time()}", flush=True)


def main() -> None:
    model, rows, out = sys.argv[1:]
    ensure_loss_kernel()  # TRL 1.15 cannot compute its loss on a CPU; later versions can
    data = [json.loads(line) for line in Path(rows).read_text(encoding="utf-8").splitlines()]
    trainer = SFTTrainer(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        args=SFTConfig(
            output_dir=out,
            per_device_train_batch_size=2,
            learning_rate=0.01,
            max_steps=3,
            max_length=64,
            logging_steps=1,
            bf16=False,
            use_cpu=True,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list(data),
        processing_class=AutoTokenizer.from_pretrained(model),
        peft_config=LoraConfig(r=4, lora_alpha=8, target_modules="all-linear"),
        callbacks=[FirstStep()],
    )
    trainer.train()


if __name__ == "__main__":
    main()
