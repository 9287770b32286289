"""The API of these tests: one of its own, so that they may treat it badly."""

from tests.app.conftest import api

__all__ = ["api"]
