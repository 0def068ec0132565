"""From a checkpoint or a file to alpha and beta, and to step times."""
