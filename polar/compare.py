"""One question to the base model and to its adapter: `compare BASE ADAPTER QUESTION`.

Prints `{"base": …, "tuned": …}`. Both decode greedily, so the difference is the training's.
A process of its own: it imports the training stack.
"""

import json
import sys
from typing import Any

LONGEST_ANSWER = 60  # tokens


def answer(model: Any, tokenizer: Any, question: str) -> str:
    """Return the model's greedy answer."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    output = model.generate(**prompt, max_new_tokens=LONGEST_ANSWER, do_sample=False)
    new = output[0][prompt["input_ids"].shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True)).strip()


def main() -> int:
    """Load base and adapter and print both answers as JSON."""
    base, adapter, question = sys.argv[1:4]

    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(adapter)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), adapter)
    model.eval()
    tuned = answer(model, tokenizer, question)
    with model.disable_adapter():
        plain = answer(model, tokenizer, question)
    print(json.dumps({"base": plain, "tuned": tuned}, ensure_ascii=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
