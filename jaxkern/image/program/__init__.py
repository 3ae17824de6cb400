"""Programs: colours, warps and noise that are drawn for each image, their codes and values."""
