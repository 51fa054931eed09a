"""Experiments as functions, and the tables and figures that they print."""
