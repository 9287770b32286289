"""`python -m trainer_core verify FILE`: are a spec's numbers right on this machine?"""
