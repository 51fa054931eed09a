"""Freezing inside other people's training loops."""
