"""Networks made smaller in place, for the duration of a block: units are 0, and afterwards everything is as it was."""
