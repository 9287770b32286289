"""Webhooks: addresses that are told what happens, signed, in order and at least once."""
