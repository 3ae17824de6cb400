"""`Compose` and what it does to batches: checks, draws, images, targets, records in order."""
