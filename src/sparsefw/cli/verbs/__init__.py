"""The verbs of the command line, a file each; heavy imports are inside, so that --help and completion answer at once."""
