"""The one loop, and what surrounds it: augmentation, evaluation, the growing head."""
