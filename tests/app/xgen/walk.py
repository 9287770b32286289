"""Every field of XGen's form with another value than its default, and a form that it acts in."""

from dataclasses import dataclass, field
from typing import Any

LEAST = {"model_name_or_path": "org/model", "train_data": "org/data"}
_DPO = {
    "training_method": "dpo",
    "dataset_minor_column": "rejected",
    "use_dpotrainer": True,
}
_ST = {"training_method": "sentence_transformer"}
_GIST = {**_ST, "st_loss_func": "CachedGISTEmbedLoss"}
_TRIPLET = {**_ST, "st_loss_func": "TripletLoss", "dataset_minor_column": "negative"}
_STORE = {"model_load_method": "minio", "dataset_load_method": "minio"}
_KEYS = {"minio_access_key": "access-key", "minio_secret_key": "secret-key"}
_HUB = {"hub_model_id": "shop", "hugging_face_user_id": "org", "hugging_face_token": "hf_01234567"}
_LORA = {"use_peft": True, "training_method": "sft"}
_ADALORA = {**_LORA, "peft_type": "adalora"}
_IA3 = {**_LORA, "peft_type": "ia3", "ia3_target_modules": "k_proj,down_proj"}


@dataclass(frozen=True)
class Step:
    """A value of a field; `beside` is what else the form says, `gpus` what hosts have."""

    value: Any
    beside: dict[str, Any] = field(default_factory=dict)
    gpus: int = 0


WALK: dict[str, Step] = {
    "number_gpu": Step(2, {"training_method": "sft"}, gpus=2),
    "project_name": Step("한국어 shop"),
    "training_method": Step("clm"),
    "model_load_method": Step("minio"),
    "dataset_load_method": Step("minio"),
    "hugging_face_user_id": Step("another", _HUB),
    "hugging_face_token": Step("hf_0123456789"),
    "mlflow_url": Step("http://mlflow:5000"),
    "mlflow_run_id": Step("job_20261130_120000"),
    "minio_url": Step("http://minio:9000"),
    "minio_access_key": Step("another-key", {**_STORE, **_KEYS}),
    "minio_secret_key": Step("another-key", {**_STORE, **_KEYS}),
    "use_deepspeed": Step(True),
    "ds_jsonpath": Step("/data/ds.json"),
    "ds_preset": Step("zero-3", {"use_deepspeed": True}),
    "ds_stage2_bucket_size": Step(2e8, {"use_deepspeed": True}),
    "ds_stage3_sub_group_size": Step(1e8),
    "ds_stage3_max_live_parameters": Step(1e7),
    "ds_stage3_max_reuse_distance": Step(1e7),
    "model_name_or_path": Step("org/another"),
    "language_model_class": Step("qwen3"),
    "ref_model_path": Step("org/reference", _DPO),
    "model_subfolder": Step("half"),
    "config_name": Step("org/config"),
    "tokenizer_name": Step("org/tokenizer"),
    "cache_dir": Step("../../etc"),
    "train_data": Step("org/another"),
    "train_data_dir": Step("part", _STORE),
    "train_data_split": Step("validation"),
    "test_data": Step("org/held"),
    "test_data_dir": Step("part", {**_STORE, "test_data": "held"}),
    "test_data_split": Step("validation", {"test_data": "org/held"}),
    "dataset_main_column": Step("question"),
    "dataset_sub_column": Step("answer"),
    "dataset_minor_column": Step("negative", _ST),
    "dataset_last_column": Step("score", _ST),
    "push_to_hub": Step(False, _HUB),
    "push_to_minio": Step(False),
    "minio_model_load_bucket": Step("others", _STORE),
    "minio_model_save_bucket": Step("others"),
    "minio_data_load_bucket": Step("others", _STORE),
    "use_sfttrainer": Step(True),
    "use_dpotrainer": Step(True, {"dataset_minor_column": "rejected"}),
    "use_ppotrainer": Step(True),
    "use_grpotrainer": Step(True),
    "use_custom_kl_sfttrainer": Step(True),
    "mlm_probability": Step(0.3, {"training_method": "mlm"}),
    "num_labels": Step(3),
    "dpo_loss_type": Step("kto_pair", _DPO),
    "dpo_beta": Step(0.2, _DPO),
    "dpo_label_smoothing": Step(0.1, _DPO),
    "st_pooling_mode": Step("cls", _ST),
    "st_dense_feature": Step(128, _ST),
    "st_loss_func": Step("MultipleNegativesRankingLoss", _ST),
    "st_evaluation": Step("TripletEvaluator", _ST),
    "st_guide_model": Step("org/guide", _GIST),
    "st_cache_minibatch": Step(8, _GIST),
    "st_triplet_margin": Step(2.5, _TRIPLET),
    "st_cache_gist_temperature": Step(0.05, _GIST),
    "st_use_adaptivelayerloss": Step(True, _ST),
    "st_adaptivelayerloss_n_layer": Step(2, {**_ST, "st_use_adaptivelayerloss": True}),
    "use_attn_implementation": Step(False),
    "attn_implementation": Step("flash_attention_2"),
    "is_resume": Step(True),
    "model_commit_msg": Step("first try"),
    "train_test_split_ratio": Step(0.1),
    "data_filtering": Step(False),
    "tokenizer_max_len": Step(1024),
    "output_dir": Step("out/run"),
    "overwrite_output_dir": Step(False),
    "use_stableadamw": Step(False),
    "optim": Step("sgd"),
    "adam_beta1": Step(0.8),
    "adam_beta2": Step(0.999),
    "adam_epsilon": Step(1e-8),
    "save_strategy": Step("epoch"),
    "save_steps": Step(50),
    "eval_strategy": Step("epoch"),
    "eval_steps": Step(50),
    "save_total_limit": Step(3),
    "hub_model_id": Step("another", _HUB),
    "hub_strategy": Step("end", _HUB),
    "logging_steps": Step(1),
    "max_grad_norm": Step(0.5),
    "per_device_train_batch_size": Step(2),
    "per_device_eval_batch_size": Step(2),
    "gradient_accumulation_steps": Step(8),
    "ddp_find_unused_parameters": Step(False),
    "learning_rate": Step(1e-4),
    "gradient_checkpointing": Step(False),
    "num_train_epochs": Step(0.5),
    "warmup_ratio": Step(0),
    "weight_decay": Step(0),
    "do_train": Step(False),
    "do_eval": Step(False),
    "bf16": Step(False),
    "fp16": Step(True, gpus=1),
    "use_peft": Step(True),
    "peft_type": Step("vera", _LORA),
    "lora_target_modules": Step("q_proj, v_proj", _LORA),
    "lora_r": Step(16, _LORA),
    "lora_alpha": Step(32, _LORA),
    "lora_dropout": Step(0, _LORA),
    "lora_modules_to_save": Step("lm_head", _LORA),
    "adalora_init_r": Step(16, _ADALORA),
    "adalora_target_r": Step(8, _ADALORA),
    "adalora_tinit": Step(10, _ADALORA),
    "adalora_tfinal": Step(20, _ADALORA),
    "adalora_delta_t": Step(5, _ADALORA),
    "adalora_orth_reg_weight": Step(0.1, _ADALORA),
    "ia3_target_modules": Step("k_proj,v_proj,down_proj", _IA3),
    "feedforward_modules": Step("down_proj", _IA3),
    "adapter_layers": Step(10, _LORA),
    "adapter_len": Step(10, _LORA),
    "vera_target_modules": Step("q_proj", {**_LORA, "peft_type": "vera"}),
    "ln_target_modules": Step("norm", {**_LORA, "peft_type": "ln"}),
}
SAME_SERVICE = {"mlflow_url", "minio_url"}
"""Checked, and then what is configured is used: the same addresses change nothing."""
REFUSED = {"use_ppotrainer", "do_train"}
"""What cannot work with any other value than the default."""
