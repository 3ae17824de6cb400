"""The transforms: what each draws, does to images, and does to points of them."""
