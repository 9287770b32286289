"""OpenAI's API for files and fine-tuning jobs, on the services of `/datasets` and `/jobs`."""
