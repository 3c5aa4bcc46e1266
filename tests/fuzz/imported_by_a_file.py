"""Code that hostile files name. Nothing imports it."""
