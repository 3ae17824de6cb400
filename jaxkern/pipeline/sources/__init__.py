"""Where records come from: arrays, files, data sets, each as a source of batches."""
