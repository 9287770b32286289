"""What a job keeps: checkpoints and artifacts, listed and downloaded."""
