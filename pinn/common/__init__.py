"""Files, tables, remembered results, workers and plots, which every package uses."""
