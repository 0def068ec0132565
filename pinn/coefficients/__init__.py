"""From a checkpoint or a file to alpha and beta, to step times and their intervals."""
