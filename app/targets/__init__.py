"""Where jobs can run: hosts that are online, their devices, and how much waits for them."""
