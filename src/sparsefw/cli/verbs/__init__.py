"""The verbs of the command line, one file each. Heavy imports are inside the functions, so that --help answers at once."""
