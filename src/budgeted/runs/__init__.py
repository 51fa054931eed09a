"""The run folder and what is read from it: config, records, checkpoints, exact resume and statistics."""
