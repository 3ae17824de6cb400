"""What a detector gave: frames or events from files, and the bins that its pixels belong to."""
