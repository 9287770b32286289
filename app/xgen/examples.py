"""Examples of the OpenAPI description; a test sends each of them for real."""

from typing import Any

_SAMPLE: dict[str, Any] = {
    "number_gpu": 1,
    "project_name": "shop",
    "training_method": "sft",
    "model_name_or_path": "google/gemma-3-4b-it",
    "language_model_class": "gemma3",
    "train_data": "org/instructions",
    "train_data_split": "train",
    "test_data_split": "",
    "dataset_main_column": "instruction",
    "dataset_sub_column": "output",
    "tokenizer_max_len": 1024,
    "use_sfttrainer": True,
    "use_deepspeed": True,
    "ds_preset": "zero-2",
    "use_attn_implementation": True,
    "attn_implementation": "eager",
    "learning_rate": 1e-5,
    "num_train_epochs": 3,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 8,
    "push_to_hub": True,
    "push_to_minio": False,
    "hugging_face_user_id": "org",
    "hugging_face_token": "hf_0123456789abcdef",
    "hub_model_id": "gemma-shop",
    "minio_url": "",
    "minio_access_key": "",
    "minio_secret_key": "",
    "minio_model_load_bucket": "",
    "minio_model_save_bucket": "",
    "minio_data_load_bucket": "",
    "mlflow_run_id": "job_20261130_120000",
}
GEMMA: dict[str, Any] = dict(_SAMPLE)
QWEN: dict[str, Any] = {
    **_SAMPLE,
    "model_name_or_path": "Qwen/Qwen3-4B",
    "language_model_class": "qwen3",
    "attn_implementation": "flash_attention_2",
    "hub_model_id": "qwen-shop",
}
START: dict[str, Any] = {
    "gemma": {"summary": "The page's first sample", "value": GEMMA},
    "qwen": {"summary": "The page's second sample", "value": QWEN},
}
MLFLOW: dict[str, Any] = {
    "run": {
        "value": {"mlflow_url": "", "mlflow_exp_id": "", "mlflow_run_id": "job_20261130_120000"}
    }
}
INSTANCE: dict[str, Any] = {
    "device": {
        "value": {
            "offer_id": "local:example-host:0",
            "offer_info": {"gpu_name": "NVIDIA A100-SXM4-80GB", "num_gpus": 1},
            "hf_hub_token": "hf_0123456789abcdef",
            "template_name": "budget",
            "auto_destroy": True,
        }
    }
}
